//! A machine written by one command is parsed by the others: every written notation, by every
//! parser.

use placement::Machine;
use placement::configured::Configured;
use placement::machine::file::{self, render_compact, render_json, render_yaml};
use placement::machine::name_of;
use planner::generate::{GenerateOptions, generate};
use planner::machine::{Format, parse};
use proptest::prelude::*;

/// Returns machines as words, with any of the options.
fn words() -> impl Strategy<Value = String> {
    let counts = (1u32..5, 1u32..5, 1u32..7, 1u32..4);
    let options = prop::sample::subsequence(
        vec![
            "mem=3Gi",
            "hugepages-2Mi=7",
            "hugepages-1Gi=1",
            "distances=10,21",
            "memory-nodes=2",
            "offline=0",
            "numbering=adjacent",
            "os=windows",
            "name=1e3",
        ],
        0..9,
    );
    (counts, options).prop_map(|((sockets, nodes, cores, threads), options)| {
        // A last CPU stays if the first one is offline.
        let threads = threads.max(if options.contains(&"offline=0") { 2 } else { 1 });
        format!(
            "{sockets} sockets x {nodes} numa x {cores} cores x {threads} threads {}",
            options.join(" ")
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn written_machine_is_parsed_by_every_parser(words in words()) {
        let mut machine = parse(&words).unwrap();
        if machine.name.is_empty() {
            // As the command line does.
            machine.name.clone_from(&words);
        }
        let expected = Machine { name: name_of(&machine.name), ..machine.clone() };
        for text in [render_json(&machine), render_yaml(&machine), render_compact(&machine)] {
            prop_assert_eq!(Format::of(&text), Format::File);
            prop_assert_eq!(&file::parse(&text).unwrap(), &expected, "{}", text);
            let read = parse(&text).unwrap();
            prop_assert_eq!(&read, &expected, "{}", text);
            // The parsed machine can be configured and planned for like the original.
            let configured = |of: &Machine| generate(of, &GenerateOptions::default()).map(|made| made.config);
            match (configured(&machine), configured(&read)) {
                (Ok(one), Ok(other)) => {
                    prop_assert_eq!(&one, &other);
                    prop_assert!(Configured::new(&read, &other).is_ok());
                }
                (one, other) => prop_assert_eq!(one.is_err(), other.is_err()),
            }
        }
    }
}
