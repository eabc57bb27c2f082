//! Structured input. Random bytes are hardly ever a valid line, so they are also used to select pieces of lines.

/// Concatenates the pieces selected by the bytes. The first byte determines the number of pieces.
pub(crate) fn spelled(bytes: &[u8], pieces: &[&str]) -> Vec<u8> {
    /// The limit is low because long random input is hardly ever valid.
    const PIECES_MAX: u8 = 16;
    let Some((length, bytes)) = bytes.split_first() else {
        return Vec::new();
    };
    let chosen = bytes.iter().take(usize::from(length % PIECES_MAX));
    chosen.flat_map(|&byte| pieces[usize::from(byte) % pieces.len()].bytes()).collect()
}

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
