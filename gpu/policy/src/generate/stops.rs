//! What ends an answer.

use crate::error::{Error, Result};
use crate::tokenizer::Text;

/// Tokens and strings that end an answer.
#[derive(Clone, Copy, Default)]
pub struct Stops<'a> {
    /// Any of these tokens.
    pub tokens: &'a [u32],
    /// Any of these strings in the answer's text; the token that completes it is the last.
    pub strings: &'a [String],
    /// Reads tokens; needed where there are strings.
    pub text: Option<&'a Text>,
}

impl Stops<'_> {
    /// # Errors
    /// An empty string, or strings without a tokenizer.
    pub fn check(&self) -> Result<()> {
        let refuse = |text: &str| Err(Error::Request(text.into()));
        match (self.strings, self.text) {
            ([], _) => Ok(()),
            (_, None) => refuse("stop strings need a tokenizer"),
            (s, _) if s.iter().any(String::is_empty) => refuse("a stop string is empty"),
            _ => Ok(()),
        }
    }

    /// Whether the last of `tokens` ends the answer.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn hit(&self, tokens: &[u32]) -> Result<bool> {
        if tokens.last().is_some_and(|t| self.tokens.contains(t)) {
            return Ok(true);
        }
        let (Some(text), Some(longest)) = (self.text, self.strings.iter().map(String::len).max())
        else {
            return Ok(false);
        };
        // A token of text has at least a byte, so a string lies within that many; some more, for
        // tokens that are not text and for characters cut in two.
        let from = tokens.len().saturating_sub(longest + 16);
        let tail = text.decode(&tokens[from..])?;
        Ok(self.strings.iter().any(|s| tail.contains(s.as_str())))
    }
}
