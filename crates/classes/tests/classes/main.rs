//! Integration tests of the class definitions.

mod mutations;
mod recorded;
