//! Limits of this process on Linux. See [`crate::os`] for the twin.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit and returns it; `None` if there is no
/// limit.
pub fn raise_open_files() -> io::Result<Option<u64>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    Ok(maximum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_file_limit_is_raised_to_the_hard_limit() {
        let before = getrlimit(Resource::Nofile);
        let lower = Rlimit { current: Some(200), maximum: before.maximum };
        setrlimit(Resource::Nofile, lower).unwrap();
        assert_eq!(raise_open_files().unwrap(), before.maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}
