//! Prints a capture of this Linux machine, or of the sysfs tree given as the first argument.

use host::capture::capture;
use host::tree::Directory;

fn main() {
    let directory = match std::env::args_os().nth(1) {
        Some(sys) => Directory { sys: sys.into(), proc: None },
        None => Directory::live(),
    };
    print!("{}", capture(&directory).render());
}
