//! Limits on this process, on Linux. See [`crate::os`] for the twin.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the number of files that this process may have open to the most that it may set. Returns
/// that number; `None` if there is no limit.
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
    fn the_limit_is_raised_to_the_most_there_is() {
        let before = getrlimit(Resource::Nofile);
        let lower = Rlimit { current: Some(200), maximum: before.maximum };
        setrlimit(Resource::Nofile, lower).unwrap();
        assert_eq!(raise_open_files().unwrap(), before.maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}
