//! Standard output: its width and its colours.
//!
//! Main type: [`Terminal`]. Colours follow `NO_COLOR`, `CLICOLOR_FORCE` and `TERM`, and are shown
//! only on a terminal unless requested.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use anstream::{AutoStream, ColorChoice};
use planner::picture::{Ink, TextOptions};

/// Width of text if the terminal's width is unknown.
const WIDTH: usize = 100;

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Colours {
    #[default]
    Auto,
    Always,
    Never,
}

/// Standard output.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    pub width: usize,
    pub colours: bool,
}

impl Terminal {
    #[must_use]
    pub fn of_standard_output(colours: Colours) -> Terminal {
        let stdout = io::stdout();
        let size = terminal_size::terminal_size().filter(|_| stdout.is_terminal());
        let width = size.map_or(WIDTH, |(width, _)| usize::from(width.0));
        let colours = match colours {
            Colours::Always => true,
            Colours::Never => false,
            Colours::Auto => AutoStream::choice(&stdout) != ColorChoice::Never,
        };
        Terminal { width, colours }
    }

    /// Returns the options for drawing here.
    #[must_use]
    pub fn text(self, ascii: bool) -> TextOptions {
        let ink = if ascii { Ink::Ascii } else { Ink::Unicode };
        TextOptions { width: self.width, ink, colours: self.colours }
    }

    /// Writes text that fits the terminal. A closed pipe is not an error.
    pub fn print(self, text: &str) -> io::Result<()> {
        let choice = if self.colours { ColorChoice::Always } else { ColorChoice::Never };
        let mut stream = AutoStream::new(io::stdout().lock(), choice);
        match stream.write_all(text.as_bytes()).and_then(|()| stream.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }
}
