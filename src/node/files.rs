//! Private files that contain names of counted users. Other accounts must not be able to read them or replace them.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
const ROOT: u32 = 0;
/// The size of a [`header`].
pub(crate) const HEADER: usize = 12;

/// Opens or creates a directory. Fails if it belongs to another user (except root) or is world-writable.
pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
    let directory = File::open(path)?;
    let found = directory.metadata()?;
    let (owner, user) = (found.uid(), own_user());
    let mode = found.mode() & 0o7777;
    if owner != user && owner != ROOT {
        return Err(io::Error::other(format!(
            "the directory belongs to user {owner}, but this process runs as user {user}; chown the directory to user {user}"
        )));
    }
    if mode & 0o002 != 0 {
        return Err(io::Error::other(format!(
            "the directory is world-writable (mode {mode:04o}); chmod it to 0700"
        )));
    }
    Ok(directory)
}

pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    let file = open(path, OpenOptions::new().read(true).write(true).create(true))?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

pub(crate) fn create(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().write(true).create_new(true))
}

pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true))
}

pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_to_read(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the header that is written before a payload: its length (4 bytes) and the xxh3-64 hash of the length and the payload
/// (8 bytes), both little-endian. Returns `None` if the payload is too large.
pub(crate) fn header(payload: &[u8]) -> Option<[u8; HEADER]> {
    let len = u32::try_from(payload.len()).ok()?.to_le_bytes();
    let mut hash = Xxh3::new();
    hash.update(&len);
    hash.update(payload);
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&len);
    header[4..].copy_from_slice(&hash.digest().to_le_bytes());
    Some(header)
}

/// Replaces the contents of a file atomically: even after a power failure, the file has either the old or the new contents.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = create(&new)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&new, path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Opens a regular file. Fails if it is a symlink, belongs to another user or has additional hard links.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // O_NONBLOCK: opening a pipe must not block.
    options.mode(FILE_MODE).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let refused = |reason: &str| {
        let path = path.display();
        Err(io::Error::other(format!("{path} {reason}; move it elsewhere")))
    };
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return refused("is a symlink");
        }
        opened => opened?,
    };
    let found = file.metadata()?;
    let (owner, user) = (found.uid(), own_user());
    if !found.is_file() {
        refused("is not a regular file")
    } else if owner != user {
        refused(&format!("belongs to user {owner}, but this process runs as user {user}"))
    } else if found.nlink() > 1 {
        refused("has more than one hard link")
    } else {
        Ok(file)
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[track_caller]
    fn assert_refused<T>(refused: io::Result<T>, reason: &str) {
        let error = refused.err().expect("the file is refused").to_string();
        assert!(error.contains(reason), "{error}");
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [target, link, hard] =
            ["target", "link", "hard"].map(|name| directory.path().join(name));
        fs::write(&target, "kept").unwrap();
        symlink(&target, &link).unwrap();
        assert_refused(open_lock(&link), "is a symlink; move it elsewhere");
        assert_refused(read(&link), "is a symlink");
        assert_refused(create(&link), "exists");
        fs::hard_link(&target, &hard).unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o644)).unwrap();
        assert_refused(open_lock(&hard), "more than one hard link");
        assert_refused(read(&hard), "more than one hard link");
        assert_eq!((fs::read(&target).unwrap(), mode(&target)), (b"kept".to_vec(), 0o644));
        // The file left by an earlier attempt is replaced, and a symlink is not followed.
        symlink(&target, link.with_extension("new")).unwrap();
        replace(&link, b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"kept");
        assert_eq!((read(&link).unwrap(), mode(&link)), (b"new".to_vec(), 0o600));
    }

    #[test]
    fn pipe_is_refused_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(FILE_MODE);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        assert_refused(read(&pipe), "is not a regular file");
        assert_refused(open_lock(&pipe), "is not a regular file");
    }

    #[test]
    fn lock_file_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let lock = directory.path().join("lock");
        for made in [None, Some(0o666)] {
            if let Some(made) = made {
                fs::set_permissions(&lock, Permissions::from_mode(made)).unwrap();
            }
            open_lock(&lock).unwrap();
            assert_eq!(mode(&lock), 0o600);
        }
    }

    #[test]
    fn a_directory_that_everyone_may_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        open_directory(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        fs::set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
        assert_refused(open_directory(&path), "(mode 1777); chmod it to 0700");
        fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        open_directory(&path).unwrap();
    }

    /// Only root can change the owner of a file.
    #[test]
    fn files_of_another_user_are_refused() {
        if own_user() != ROOT {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "of another").unwrap();
        std::os::unix::fs::chown(&file, Some(4711), None).unwrap();
        assert_refused(open_lock(&file), "belongs to user 4711");
        assert_refused(read(&file), "belongs to user 4711");
        std::os::unix::fs::chown(directory.path(), Some(4711), None).unwrap();
        assert_refused(open_directory(directory.path()), "belongs to user 4711");
    }
}
