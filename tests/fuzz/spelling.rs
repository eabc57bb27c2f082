//! Inputs that get somewhere: random bytes are hardly ever a line, so they also choose among pieces of lines.

/// The pieces that these bytes choose, one after the other.
pub(crate) fn spelled(bytes: &[u8], pieces: &[&str]) -> Vec<u8> {
    /// Longer ones find nothing that these do not.
    const PIECES_MAX: usize = 40;
    let chosen = bytes.iter().take(PIECES_MAX);
    chosen
        .flat_map(|&byte| pieces[usize::from(byte) % pieces.len()].bytes())
        .collect()
}

/// Pieces of lines.
pub(crate) const LINE: &[&str] = &[
    "a=b",
    "a=b",
    ",a=1",
    ",a=1",
    ",b=a",
    ",b=a",
    ",c=",
    " value=u",
    " value=u",
    " value=u 1",
    " value=\"u",
    ",value=v",
    "m,",
    "a",
    "b",
    "=",
    ",",
    " ",
    " ",
    "\\",
    "\\",
    "\"",
    "\\ ",
    "\\,",
    "\\=",
    "value=",
    "from",
    "0",
    "-1",
    " +",
    "1480876707352348928",
    "9223372036854775807",
    "#",
    "\n",
    "\r",
    "\0",
    "ü",
    "\u{85}",
    "\u{2028}",
];
