//! "Did you mean": the known name that is closest to an unknown one. Entry: [`nearest`]. Returns
//! nothing without a close match; a wrong guess is worse than none.

use strsim::osa_distance;

/// Returns the candidate that was most likely meant by `name`: the same letters in another case
/// first, otherwise the smallest edit distance, at most one edit per three letters.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_ascii_lowercase();
    // The comparison takes time proportional to both lengths; no known name is longer than this.
    if lower.len() > 100 {
        return None;
    }
    let allowed = (lower.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&lower, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_and_wrong_case_find_their_name_and_strangers_none() {
        let names = ["containers", "initContainers", "nodeName", "os"];
        assert_eq!(nearest("contianers", names), Some("containers"));
        assert_eq!(nearest("nodename", names), Some("nodeName"));
        assert_eq!(nearest("container", names), Some("containers"));
        assert_eq!(nearest("banana", names), None);
        assert_eq!(nearest(&"x".repeat(1_000_000), names), None);
    }
}
