//! Integration tests of the class definitions.

mod recorded;
