//! Indexes of a job: [`Indexes`], with the text form of the status: `0,2-4,7`.

use std::iter::once;

/// A set of indexes as ascending, disjoint ranges. A job can have too many indexes to list them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(i64, i64)>);

impl Indexes {
    /// Parses the indexes below `completions`; unreadable parts are skipped.
    pub(super) fn parse(text: &str, completions: i64) -> Indexes {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<i64>().ok()?, last.parse::<i64>().ok()?);
            let last = last.min(completions - 1);
            (0 <= first && first <= last).then_some((first, last))
        };
        Indexes::merged(text.split(',').filter_map(range).collect())
    }

    fn merged(mut ranges: Vec<(i64, i64)>) -> Indexes {
        ranges.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Indexes(merged)
    }

    /// Returns the set with the given indexes added.
    pub(super) fn with(&self, others: impl IntoIterator<Item = i64>) -> Indexes {
        let others = others.into_iter().map(|index| (index, index));
        Indexes::merged(self.0.iter().copied().chain(others).collect())
    }

    /// Returns the union of two sets.
    pub(super) fn or(&self, other: &Indexes) -> Indexes {
        Indexes::merged(self.0.iter().chain(&other.0).copied().collect())
    }

    pub(super) fn contains(&self, index: i64) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(at).is_some_and(|(first, _)| *first <= index)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of indexes.
    pub(super) fn count(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Returns the number of indexes in both sets.
    pub(super) fn shared(&self, other: &Indexes) -> i64 {
        self.count() + other.count() - self.or(other).count()
    }

    /// Returns the missing indexes in order.
    pub(super) fn missing(&self, completions: i64) -> impl Iterator<Item = i64> + '_ {
        let starts = once(0).chain(self.0.iter().map(|(_, last)| last + 1));
        let ends = self.0.iter().map(|(first, _)| *first).chain(once(completions));
        starts.zip(ends).flat_map(move |(start, end)| start..end.min(completions))
    }

    pub(super) fn render(&self) -> String {
        let texts = self.0.iter().map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        });
        texts.collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_round_trip_through_text() {
        for text in ["", "0", "0,1", "0-2", "1,3-5,7", "0,1,3,4", "0-2000000000"] {
            assert_eq!(Indexes::parse(text, i64::from(i32::MAX)).render(), text);
        }
        for (text, read) in [
            ("x,0-99999999999,-", "0-9"),
            ("8-12,20", "8,9"),
            ("3,1,2", "1-3"),
            ("5-2,-1,4-4", "4"),
            ("0-3,2-6", "0-6"),
        ] {
            assert_eq!(Indexes::parse(text, 10).render(), read, "{text}");
        }
        assert!(Indexes::parse("0-3", 0).is_empty());
    }

    #[test]
    fn index_sets_agree_with_lists() {
        let texts = ["", "0", "9", "0-9", "1,3-5,7", "0,2,4,6,8", "2-4,8"];
        let listed = |set: &Indexes| (0..10).filter(|i| set.contains(*i)).collect::<Vec<_>>();
        for a in texts {
            let one = Indexes::parse(a, 10);
            let list = listed(&one);
            assert_eq!(one.count(), i64::try_from(list.len()).unwrap(), "{a}");
            let rest: Vec<i64> = (0..10).filter(|i| !list.contains(i)).collect();
            assert_eq!(one.missing(10).collect::<Vec<_>>(), rest, "{a}");
            for b in texts {
                let other = Indexes::parse(b, 10);
                let both = list.iter().filter(|i| listed(&other).contains(i)).count();
                assert_eq!(one.shared(&other), i64::try_from(both).unwrap(), "{a} and {b}");
                assert_eq!(one.with(listed(&other)), one.or(&other), "{a} and {b}");
            }
        }
    }
}
