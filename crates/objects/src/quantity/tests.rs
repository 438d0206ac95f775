use proptest::prelude::*;

use super::*;

fn q(text: &str) -> Quantity {
    Quantity::parse(text).unwrap()
}

#[test]
fn numbers_with_a_large_exponent_survive_a_round_trip() {
    for text in [
        "0110001110999909010E010990",
        "-999999999999999999e2147483645",
        "1e2147483647",
        "123456789012345678e5001",
        "123456789012345678000e5000",
    ] {
        let quantity = Quantity::parse(text).unwrap();
        let canonical = quantity.to_string();
        assert_eq!(Quantity::parse(&canonical), Ok(quantity), "{text} as {canonical}");
    }
    let long = Quantity::parse("1234567890123456789e5000");
    assert_eq!(long, Err(ParseQuantityError::Numeric));
}

#[test]
fn texts_come_back_in_canonical_form() {
    let table = [
        ("0", "0"),
        ("-0", "0"),
        ("Gi", "0"),
        ("-", "0"),
        ("1000", "1k"),
        ("1.5", "1500m"),
        ("1.5Gi", "1536Mi"),
        ("0.1Gi", "107374182400m"),
        ("0.5Ki", "512"),
        ("1048576Ki", "1Gi"),
        ("1e19", "10e18"),
        ("1000E", "1e21"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1e-2000000000", "1e-9"),
        ("8192Pi", "9223372036854775807"),
        ("-8192Pi", "-9223372036854775807"),
        ("1234567890123456789012345678901234567890", "1234567890123456789012345678901234567890"),
        ("0.00000000000000000001", "1n"),
        // Kept as written, as upstream does.
        ("+1", "+1"),
        ("007", "007"),
        ("2104.330", "2104.330"),
        ("1e3", "1e3"),
    ];
    for (text, canonical) in table {
        assert_eq!(q(text).to_string(), canonical, "{text}");
    }
}

#[test]
fn errors_have_upstream_texts() {
    let table = [
        ("", ParseQuantityError::Format),
        ("1..5", ParseQuantityError::Format),
        ("1 Gi", ParseQuantityError::Format),
        ("1GiB", ParseQuantityError::Format),
        ("ä", ParseQuantityError::Format),
        ("1K", ParseQuantityError::Suffix),
        ("1e", ParseQuantityError::Suffix),
        ("--1", ParseQuantityError::Suffix),
        ("1e99999999999999999999", ParseQuantityError::Suffix),
        ("Pi", ParseQuantityError::Numeric),
        ("e-10", ParseQuantityError::Numeric),
    ];
    for (text, error) in table {
        assert_eq!(Quantity::parse(text).unwrap_err(), error, "{text}");
    }
}

#[test]
fn integer_views_round_up() {
    let table =
        [("100m", 1, 100), ("2500m", 3, 2500), ("1n", 1, 1), ("1.5Gi", 1610612736, 1610612736000)];
    for (text, value, milli) in table {
        assert_eq!((q(text).value(), q(text).milli_value()), (value, milli), "{text}");
        assert_eq!(q(text).checked_value(), Some(value), "{text}");
        assert_eq!(q(text).checked_milli_value(), Some(milli), "{text}");
    }
}

#[test]
fn the_checked_views_refuse_what_64_bits_cannot_hold() {
    for text in ["1e19", "9223372036854775808", "-1e30", "1e2000000000"] {
        assert_eq!(q(text).checked_value(), None, "{text}");
    }
    assert_eq!(q("9223372036854775807").checked_value(), Some(i64::MAX));
    assert_eq!(q("9223372036854775807").checked_milli_value(), None);
    assert_eq!(q("0e2000000000").checked_value(), Some(0));
}

#[test]
fn the_quick_integer_view_knows_only_plain_integers() {
    assert_eq!(q("1.5Gi").as_i64(), None);
    assert_eq!(q("1536Mi").as_i64(), Some(1536 << 20));
    assert_eq!(q("1000m").as_i64(), None);
    assert_eq!(q("1Pi").as_i64(), None);
    assert_eq!(q("3k").as_i64(), Some(3000));
}

#[test]
fn quantities_compare_by_value_whatever_their_notation() {
    assert_eq!(q("1000m"), q("1"));
    assert_eq!(q("1.5Gi"), q("1536Mi"));
    assert!(q("1Gi") > q("1G"));
    assert!(q("-1") < q("0"));
    assert!(q("1e2000000000") > q("123456789012345678901234567890"));
    assert!(q("-1e2000000000") < q("-123456789012345678901234567890"));
    assert!(q("999999999999999999999n") < q("1e12"));
}

#[test]
fn sums_keep_the_notation_of_the_first() {
    assert_eq!(q("1Gi").checked_add(&q("512Mi")).unwrap().to_string(), "1536Mi");
    assert_eq!(q("500m").checked_add(&q("1.5")).unwrap().to_string(), "2");
    assert_eq!(q("0").checked_add(&q("2Mi")).unwrap().to_string(), "2Mi");
    assert_eq!(q("1").checked_sub(&q("1500m")).unwrap().to_string(), "-500m");
    let most = q("9223372036854775807");
    assert_eq!(most.checked_add(&q("1")).unwrap().to_string(), "9223372036854775808");
    assert_eq!(q("1e2000000000").checked_add(&q("1")), None);
}

#[test]
fn multiples_are_exact() {
    assert_eq!(q("100m").times(30).to_string(), "3");
    assert_eq!(q("1Gi").times(0).to_string(), "0");
    assert_eq!(q("4Ei").times(4).to_string(), "16Ei");
}

#[test]
fn defaulting_rounds_up_to_milli_units() {
    assert_eq!(q("1u").round_up_to_milli().to_string(), "1m");
    assert_eq!(q("0.3Mi").round_up_to_milli().to_string(), "314572800m");
    assert_eq!(q("0.1234567Ki").round_up_to_milli().to_string(), "126420m");
    assert_eq!(q("+1").round_up_to_milli().to_string(), "+1");
}

#[test]
fn json_strings_and_numbers_are_read_and_canonical_strings_written() {
    let read = |json: &str| serde_json::from_str::<Quantity>(json);
    assert_eq!(read("\" 1.5Gi \"").unwrap(), q("1.5Gi"));
    assert_eq!(read("2").unwrap(), q("2"));
    assert_eq!(read("-2").unwrap(), q("-2"));
    assert_eq!(read("0.1").unwrap(), q("100m"));
    assert!(read("true").unwrap_err().is_data());
    assert_eq!(serde_json::to_string(&q("1.5Gi")).unwrap(), "\"1536Mi\"");
}

#[test]
fn a_long_or_huge_number_is_refused_and_not_computed() {
    assert!(Quantity::parse(&"9".repeat(100_000)).is_err());
    assert!(Quantity::parse("1234567890123456789e2000000000").is_err());
    assert_eq!(q("1234567890123456789e-2000000000").to_string(), "1e-9");
}

/// Generates texts that resemble quantities.
fn nearly_a_quantity() -> impl Strategy<Value = String> {
    "[+-]?[0-9.]{0,25}(([eE][+-]?[0-9]{0,11})|[numkKMGTPE]?i?)"
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,40}") {
        let _ = Quantity::parse(&text);
    }

    #[test]
    fn every_view_of_every_quantity_gives_an_answer(a in nearly_a_quantity(), b in nearly_a_quantity()) {
        let (Ok(a), Ok(b)) = (Quantity::parse(&a), Quantity::parse(&b)) else { return Ok(()) };
        let _ = (a.value(), a.milli_value(), a.as_i64(), a.checked_value(), a.is_whole_cpus());
        let _ = (a.checked_add(&b), a.checked_sub(&b), a.cmp(&b), a.times(3));
        let _ = a.round_up_to_milli().to_string();
    }

    #[test]
    fn the_canonical_text_means_the_same(text in nearly_a_quantity()) {
        let Ok(first) = Quantity::parse(&text) else { return Ok(()) };
        let again = Quantity::parse(&first.to_string()).unwrap();
        prop_assert_eq!(&first, &again);
        prop_assert_eq!(first.sign(), again.sign());
    }

    #[test]
    fn subtracting_what_was_added_gives_the_first_back(a in nearly_a_quantity(), b in nearly_a_quantity()) {
        let (Ok(a), Ok(b)) = (Quantity::parse(&a), Quantity::parse(&b)) else { return Ok(()) };
        if let Some(sum) = a.checked_add(&b) {
            prop_assert_eq!(sum.checked_sub(&b).unwrap(), a);
        }
    }

    #[test]
    fn where_64_bits_suffice_all_views_agree(n in -1_000_000_i64..1_000_000, suffix in "[numkMG]?") {
        let quantity = q(&format!("{n}{suffix}"));
        prop_assert_eq!(quantity.checked_value(), Some(quantity.value()));
        prop_assert_eq!(quantity.checked_milli_value(), Some(quantity.milli_value()));
    }
}
