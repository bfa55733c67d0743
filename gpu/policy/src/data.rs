//! JSON lines: the files that trainings and evaluations read.

use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::batch::Sequence;
use crate::error::{Error, Result};
use crate::tokenizer::Text;

/// One example of a supervised training.
#[derive(Clone, Debug, Deserialize)]
pub struct Example {
    /// The user's message.
    pub prompt: String,
    /// The answer wanted.
    pub completion: String,
}

/// Reads one JSON value per line; blank lines are skipped.
///
/// # Errors
/// The file and, in the parser's word, the line's column; an empty file.
pub fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    let mut out = Vec::new();
    for (n, line) in std::io::BufReader::new(file).lines().enumerate() {
        let line = line.map_err(Error::io(path))?;
        if line.trim().is_empty() {
            continue;
        }
        out.push(
            serde_json::from_str(&line)
                .map_err(|e| Error::Request(format!("{} line {}: {e}", path.display(), n + 1)))?,
        );
    }
    match out.is_empty() {
        true => Err(Error::Request(format!("{} holds no lines", path.display()))),
        false => Ok(out),
    }
}

/// Tokenises examples as training sequences: the chat prompt, the answer, the end token.
/// Those longer than `context` are left out; the second value counts them.
///
/// # Errors
/// The tokenizer's or the template's.
pub fn sequences(
    text: &Text,
    examples: &[Example],
    context: usize,
) -> Result<(Vec<Sequence>, usize)> {
    let prompts: Vec<String> =
        examples.iter().map(|e| text.chat(&e.prompt)).collect::<Result<_>>()?;
    let prompts = text.encode_all(prompts)?;
    let answers = text.encode_all(examples.iter().map(|e| e.completion.clone()).collect())?;
    let mut out = Vec::new();
    for (mut tokens, answer) in prompts.into_iter().zip(answers) {
        let prompt = tokens.len();
        tokens.extend(answer);
        tokens.push(text.stop[0]);
        if prompt > 0 && tokens.len() <= context {
            out.push(Sequence { tokens, prompt });
        }
    }
    let dropped = examples.len() - out.len();
    Ok((out, dropped))
}
