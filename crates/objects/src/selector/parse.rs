//! Parses the text of a `labelSelector=` query: `a=b,c==d,e!=f,g in (h,i),j notin
//! (k),l,!m,n>1,o<2`.
//!
//! Main entry: [`requirements`]. Errors have kube-apiserver's texts.

use std::collections::BTreeSet;

use thiserror::Error;

use super::{Operator, Requirement, RequirementError, RequirementProblem, label_key_problems};

/// A text is not a label selector.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseSelectorError {
    /// An unexpected token between requirements.
    #[error("found '{found}', expected: {expected}")]
    Between { found: String, expected: &'static str },
    #[error("unable to parse requirement: {0}")]
    Requirement(#[from] InRequirement),
}

/// An error inside one requirement.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InRequirement {
    #[error("found '{found}', expected: {expected}")]
    Unexpected { found: String, expected: &'static str },
    /// Upstream's text has no comma here.
    #[error("found '{found}' expected: '('")]
    NoList { found: String },
    #[error(transparent)]
    Invalid(#[from] RequirementError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Less,
    NotEquals,
    Open,
    /// A key, a value, or one of the words `in` and `notin`, which may be either.
    Word(&'a str),
}

impl Token<'_> {
    fn text(&self) -> &str {
        match self {
            Token::End => "",
            Token::Close => ")",
            Token::Comma => ",",
            Token::Not => "!",
            Token::DoubleEquals => "==",
            Token::Equals => "=",
            Token::Greater => ">",
            Token::Less => "<",
            Token::NotEquals => "!=",
            Token::Open => "(",
            Token::Word(word) => word,
        }
    }

    fn unexpected(&self, expected: &'static str) -> InRequirement {
        InRequirement::Unexpected { found: self.text().to_owned(), expected }
    }

    fn between(&self, expected: &'static str) -> ParseSelectorError {
        ParseSelectorError::Between { found: self.text().to_owned(), expected }
    }
}

const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

/// The text and the position in it.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Token<'a> {
        let text = self.rest.trim_start_matches(BLANKS);
        let bytes = text.as_bytes();
        let (length, token) = match (bytes.first(), bytes.get(1)) {
            // A NUL byte ends the text for upstream.
            (None | Some(0), _) => (0, Token::End),
            (Some(b'='), Some(b'=')) => (2, Token::DoubleEquals),
            (Some(b'='), _) => (1, Token::Equals),
            (Some(b'!'), Some(b'=')) => (2, Token::NotEquals),
            (Some(b'!'), _) => (1, Token::Not),
            (Some(b'('), _) => (1, Token::Open),
            (Some(b')'), _) => (1, Token::Close),
            (Some(b','), _) => (1, Token::Comma),
            (Some(b'>'), _) => (1, Token::Greater),
            (Some(b'<'), _) => (1, Token::Less),
            _ => {
                let ends = |c: char| BLANKS.contains(&c) || "=!(),><\0".contains(c);
                let end = text.find(ends).unwrap_or(text.len());
                (end, Token::Word(text.get(..end).unwrap_or_default()))
            }
        };
        self.rest = text.get(length..).unwrap_or_default();
        token
    }

    fn peek(&self) -> Token<'a> {
        Tokens { rest: self.rest }.next()
    }
}

/// Parses the requirements of a text, in its order.
pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, ParseSelectorError> {
    let mut tokens = Tokens { rest: text };
    let mut found = Vec::new();
    loop {
        match tokens.peek() {
            Token::End => return Ok(found),
            Token::Word(_) | Token::Not => found.push(requirement(&mut tokens)?),
            other => return Err(other.between("!, identifier, or 'end of string'")),
        }
        match tokens.next() {
            Token::End => return Ok(found),
            Token::Comma => match tokens.peek() {
                Token::Word(_) | Token::Not => {}
                other => return Err(other.between("identifier after ','")),
            },
            other => return Err(other.between("',' or 'end of string'")),
        }
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, InRequirement> {
    let mut token = tokens.next();
    let negated = token == Token::Not;
    if negated {
        token = tokens.next();
    }
    let Token::Word(key) = token else {
        return Err(token.unexpected("identifier"));
    };
    let problems = label_key_problems(key);
    if !problems.is_empty() {
        // Upstream has no path for the key here and prints that.
        let problem = RequirementProblem {
            at: "<nil>".to_owned(),
            value: format!("{key:?}"),
            detail: problems.join("; "),
        };
        return Err(RequirementError(vec![problem]).into());
    }
    if negated {
        return Ok(Requirement::new(key, Operator::DoesNotExist, Vec::new())?);
    }
    if matches!(tokens.peek(), Token::End | Token::Comma) {
        return Ok(Requirement::new(key, Operator::Exists, Vec::new())?);
    }
    let token = tokens.next();
    let operator = match token {
        Token::Word("in") => Operator::In,
        Token::Word("notin") => Operator::NotIn,
        Token::Equals => Operator::Equals,
        Token::DoubleEquals => Operator::DoubleEquals,
        Token::NotEquals => Operator::NotEquals,
        Token::Greater => Operator::GreaterThan,
        Token::Less => Operator::LessThan,
        _ => return Err(token.unexpected("in, notin, =, ==, !=, gt, lt")),
    };
    let values = match operator {
        Operator::In | Operator::NotIn => list(tokens)?.into_iter().map(str::to_owned).collect(),
        _ => vec![exact(tokens)?.to_owned()],
    };
    Ok(Requirement::new(key, operator, values)?)
}

/// `(a,b)`; an empty item between commas is the empty value.
fn list<'a>(tokens: &mut Tokens<'a>) -> Result<BTreeSet<&'a str>, InRequirement> {
    let token = tokens.next();
    if token != Token::Open {
        return Err(InRequirement::NoList { found: token.text().to_owned() });
    }
    let mut values = BTreeSet::new();
    match tokens.peek() {
        Token::Close => {
            tokens.next();
            values.insert("");
            return Ok(values);
        }
        Token::Word(_) | Token::Comma => {}
        other => return Err(other.unexpected("',', ')' or identifier")),
    }
    loop {
        match tokens.next() {
            Token::Word(value) => {
                values.insert(value);
                match tokens.peek() {
                    Token::Comma => continue,
                    Token::Close => break,
                    other => return Err(other.unexpected("',' or ')'")),
                }
            }
            Token::Comma => {
                if values.is_empty() {
                    values.insert("");
                }
                match tokens.peek() {
                    Token::Close => {
                        values.insert("");
                        break;
                    }
                    Token::Comma => {
                        values.insert("");
                    }
                    _ => {}
                }
            }
            other => return Err(other.unexpected("',', or identifier")),
        }
    }
    tokens.next();
    Ok(values)
}

/// Parses the value after `=`, which may be empty.
fn exact<'a>(tokens: &mut Tokens<'a>) -> Result<&'a str, InRequirement> {
    if matches!(tokens.peek(), Token::End | Token::Comma) {
        return Ok("");
    }
    match tokens.next() {
        Token::Word(value) => Ok(value),
        other => Err(other.unexpected("identifier")),
    }
}
