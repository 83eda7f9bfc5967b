//! The secret shared by agents, if configured: a file that only its owner can read.

#![forbid(unsafe_code)]

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;

use super::gate::{Key, key_of_data, key_of_seals};

/// Minimum length of a secret, so that it cannot be guessed by trying.
const BYTES_MIN: usize = 16;
const BYTES_MAX: usize = 4096;

/// Keys derived from a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// For datagrams between agents.
    pub(crate) agents: Key,
    /// For data frames.
    pub(crate) data: Key,
}

/// Derives the keys from a file. White space around the secret is ignored, so that any editor can write it.
pub(crate) fn read(path: &Path) -> io::Result<Keys> {
    let unfit = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut file = vipl_sys::file::open(path)?;
    let about = file.metadata()?;
    let own = geteuid().as_raw();
    if about.uid() != own && about.uid() != 0 {
        let owner = about.uid();
        return Err(unfit(format!("it belongs to user {owner}, not to {own}")));
    }
    if about.mode() & 0o077 != 0 {
        return Err(unfit("others may use it: chmod 600".to_owned()));
    }
    let mut secret = Vec::new();
    (&mut file)
        .take(BYTES_MAX as u64 + 1)
        .read_to_end(&mut secret)?;
    let words = secret.trim_ascii();
    if !(BYTES_MIN..=BYTES_MAX).contains(&words.len()) {
        let length = words.len();
        return Err(unfit(format!(
            "it has {length} bytes, not {BYTES_MIN} to {BYTES_MAX}"
        )));
    }
    Ok(Keys {
        agents: key_of_seals(words),
        data: key_of_data(words),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_private_file_with_enough_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read(&path)
        };
        assert!(read(&path).is_err(), "it is not there");
        let key = write("sixteen bytes at least", 0o600).unwrap();
        assert_eq!(write("  sixteen bytes at least\n", 0o400).unwrap(), key);
        let other = write("sixteen bytes at most", 0o600).unwrap();
        assert!(other.agents != key.agents && other.data != key.data);
        assert_ne!(key.agents, key.data);
        assert!(write("fifteen bytes..", 0o600).is_err());
        assert!(write(&"x".repeat(BYTES_MAX + 1), 0o600).is_err());
        for mode in [0o640, 0o604, 0o660] {
            assert!(write("sixteen bytes at least", mode).is_err(), "{mode:o}");
        }
        assert!(read(folder.path()).is_err(), "a folder");
    }
}
