//! Indexes of a job in the form its status has them: `0,2-4,7`.

use std::collections::BTreeSet;

pub(super) fn parse(text: &str) -> BTreeSet<i64> {
    let mut all = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i64>(), last.parse::<i64>())
            // What no job can have is not counted out.
            && last.saturating_sub(first) < 1_000_000
        {
            all.extend(first..=last);
        }
    }
    all
}

pub(super) fn render(indexes: &BTreeSet<i64>) -> String {
    let mut parts: Vec<(i64, i64)> = Vec::new();
    for index in indexes {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => parts.push((*index, *index)),
        }
    }
    let texts = parts.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_go_both_ways() {
        for text in ["", "0", "0,1", "0-2", "1,3-5,7", "0,1,3,4"] {
            assert_eq!(render(&parse(text)), text);
        }
        assert!(parse("x,0-99999999999,-").is_empty());
    }
}
