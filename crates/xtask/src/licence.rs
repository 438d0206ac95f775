//! SPDX licence expressions of Cargo packages: [`satisfied`] checks one against an allow list.
//!
//! It does not know the SPDX identifiers: an unknown one is simply not on the allow list.

/// Returns true if `expression` can be satisfied with licences that `allowed` accepts.
///
/// `OR` is our choice, `AND` binds tighter than `OR`, and a licence with an exception is passed to
/// `allowed` as a whole (`Apache-2.0 WITH LLVM-exception`). The old `MIT/Apache-2.0` means `OR`. A
/// malformed expression is not satisfied.
pub fn satisfied(expression: &str, allowed: impl Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { tokens: &tokens, allowed: &allowed };
    parser.any_of() == Some(true) && parser.tokens.is_empty()
}

/// A recursive-descent parser over the remaining tokens. `None` is a syntax error.
struct Parser<'a, F> {
    tokens: &'a [&'a str],
    allowed: &'a F,
}

impl<'a, F: Fn(&str) -> bool> Parser<'a, F> {
    fn any_of(&mut self) -> Option<bool> {
        let mut yes = self.all_of()?;
        while self.take("OR") {
            yes |= self.all_of()?;
        }
        Some(yes)
    }

    fn all_of(&mut self) -> Option<bool> {
        let mut yes = self.term()?;
        while self.take("AND") {
            yes &= self.term()?;
        }
        Some(yes)
    }

    fn term(&mut self) -> Option<bool> {
        if self.take("(") {
            let yes = self.any_of()?;
            return self.take(")").then_some(yes);
        }
        let licence = self.identifier()?;
        if self.take("WITH") {
            let exception = self.identifier()?;
            return Some((self.allowed)(&format!("{licence} WITH {exception}")));
        }
        Some((self.allowed)(licence))
    }

    fn identifier(&mut self) -> Option<&'a str> {
        let (first, rest) = self.tokens.split_first()?;
        if matches!(*first, "(" | ")" | "OR" | "AND" | "WITH") {
            return None;
        }
        self.tokens = rest;
        Some(first)
    }

    fn take(&mut self, token: &str) -> bool {
        match self.tokens.split_first() {
            Some((first, rest)) if *first == token => {
                self.tokens = rest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::satisfied;

    #[test]
    fn an_expression_is_satisfied_by_allowed_licences() {
        let allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0 OR MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("MIT OR GPL-3.0 AND GPL-2.0", true),
            ("GPL-3.0 AND MIT OR GPL-2.0", false),
            ("MIT/Apache-2.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("", false),
            ("MIT OR", false),
            ("(MIT", false),
            ("MIT)", false),
            ("MIT Apache-2.0", false),
            ("AND", false),
        ] {
            assert_eq!(satisfied(expression, |l| allow.contains(&l)), expected, "{expression:?}");
        }
    }
}
