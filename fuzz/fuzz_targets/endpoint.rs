//! Runtime endpoints: a parsed endpoint survives a round trip and has one path.

#![no_main]

use cri::Endpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(endpoint) = Endpoint::parse(text) {
        assert_eq!(Endpoint::parse(&endpoint.to_string()).as_ref(), Ok(&endpoint));
        assert_ne!(endpoint.unix_path().is_some(), endpoint.pipe_path().is_some());
    }
});
