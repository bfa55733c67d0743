//! Text to tokens and back: `tokenizer.json`, the chat template, the ids that end an answer.

use std::path::{Path, PathBuf};

use minijinja::{Environment, context};
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use crate::config::{ModelConfig, read_object, token_ids};
use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::weights;

/// Files that belong to the tokenizer and travel with every checkpoint.
pub const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
];

/// The text side of a model.
pub struct Text {
    dir: PathBuf,
    /// Names and texts of the files, where the tokenizer came from a GGUF file.
    made: Vec<(&'static str, String)>,
    tokenizer: Tokenizer,
    template: Option<String>,
    bos: String,
    eos: String,
    /// Ids that end an answer; never empty. The first is the one that training appends.
    pub stop: Vec<u32>,
}

impl Text {
    /// Reads the tokenizer of the folder or GGUF file `dir` and checks it against the model's `config`.
    ///
    /// # Errors
    /// A missing or damaged file, ids beyond the embedding, no end-of-answer token.
    pub fn read(dir: &Path, config: &ModelConfig) -> Result<Self> {
        let made: Vec<_> = match weights::is_gguf(dir) {
            true => Gguf::open(dir)?.tokenizer()?.into(),
            false => Vec::new(),
        };
        let path = if made.is_empty() { dir.join("tokenizer.json") } else { dir.to_owned() };
        if !path.is_file() {
            let fix = "copy tokenizer.json from the model's folder, or make one with `train-bpe`";
            return Err(Error::Missing { path, fix });
        }
        let fault = |problem: String| Error::Tokenizer { path: path.clone(), problem };
        let tokenizer = match made.first() {
            Some((_, text)) => text.parse::<Tokenizer>(),
            None => Tokenizer::from_file(&path),
        };
        let tokenizer = tokenizer.map_err(|e| fault(e.to_string()))?;
        let top = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        if i64::from(top) >= config.vocab {
            let rows = config.vocab;
            return Err(fault(format!(
                "has token id {top}, the embedding has {rows} rows: it belongs to another model"
            )));
        }
        let extra = match made.get(1) {
            Some((_, text)) => serde_json::from_str(text)
                .map_err(|source| Error::Json { path: path.clone(), source })?,
            None => optional(&dir.join("tokenizer_config.json"))?,
        };
        let generation = optional(&dir.join("generation_config.json"))?;
        let (bos, eos) = (special(&extra, "bos_token"), special(&extra, "eos_token"));
        let mut stop = Vec::new();
        if !eos.is_empty() {
            let id = tokenizer.token_to_id(&eos);
            stop.push(id.ok_or_else(|| {
                fault(format!("lacks the special token `{eos}` that tokenizer_config.json names"))
            })?);
        }
        stop.extend(token_ids(generation.get("eos_token_id")));
        stop.extend(&config.eos);
        let mut known = std::collections::HashSet::new();
        stop.retain(|id| known.insert(*id));
        match stop.iter().find(|id| i64::from(**id) >= config.vocab) {
            Some(id) => return Err(fault(format!("eos id {id} is beyond the embedding"))),
            None if stop.is_empty() => {
                let problem = "no end-of-answer token: set eos_token in tokenizer_config.json";
                return Err(fault(problem.into()));
            }
            None => {}
        }
        let template = template(dir, &extra)?;
        Ok(Text { dir: dir.to_owned(), made, tokenizer, template, bos, eos, stop })
    }

    /// The folder that the tokenizer came from.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// One more than the highest token id.
    pub fn size(&self) -> usize {
        self.tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// Renders one user message with the model's chat template, ready for the answer.
    ///
    /// # Errors
    /// No template, or one that fails on this message.
    pub fn chat(&self, user: &str) -> Result<String> {
        let fault = |problem: String| Error::ChatTemplate { path: self.dir.clone(), problem };
        let source = self.template.as_deref().ok_or_else(|| {
            fault("is missing: add chat_template.jinja or `chat_template`".to_owned())
        })?;
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |text: String| -> std::result::Result<(), _> {
            Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, text))
        });
        let message = context! { role => "user", content => user };
        let values = context! {
            messages => vec![message], add_generation_prompt => true,
            bos_token => &self.bos, eos_token => &self.eos,
        };
        env.render_str(source, values).map_err(|e| fault(format!("{e:#}")))
    }

    /// Tokens of `text`, special tokens in it recognised, none added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, false).map_err(|e| self.fault(e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// [`Text::encode`] over many texts, on all cores.
    pub fn encode_all(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>> {
        let encodings = self.tokenizer.encode_batch_fast(texts, false);
        let encodings = encodings.map_err(|e| self.fault(e))?;
        Ok(encodings.iter().map(|e| e.get_ids().to_vec()).collect())
    }

    /// The prompt tokens of one user message.
    pub fn encode_chat(&self, user: &str) -> Result<Vec<u32>> {
        self.encode(&self.chat(user)?)
    }

    /// Text of `tokens`, special tokens left out.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer.decode(tokens, true).map_err(|e| self.fault(e))
    }

    fn fault(&self, e: tokenizers::Error) -> Error {
        Error::Tokenizer { path: self.dir.join("tokenizer.json"), problem: e.to_string() }
    }

    /// Copies the tokenizer's files into `to`, a folder.
    pub fn copy_files(&self, to: &Path) -> Result<()> {
        for (name, text) in &self.made {
            crate::files::write_bytes(&to.join(name), text.as_bytes())?;
        }
        for name in TOKENIZER_FILES {
            let from = self.dir.join(name);
            if from.is_file() && self.dir != to {
                let bytes = std::fs::read(&from).map_err(Error::io(&from))?;
                crate::files::write_bytes(&to.join(name), &bytes)?;
            }
        }
        Ok(())
    }
}

fn optional(path: &Path) -> Result<Map<String, Value>> {
    if path.is_file() { read_object(path) } else { Ok(Map::new()) }
}

/// A special token: a string, or an object with `content`.
fn special(config: &Map<String, Value>, key: &str) -> String {
    let value = config.get(key);
    let text = value.and_then(|v| v.as_str().or_else(|| v.get("content")?.as_str()));
    text.unwrap_or_default().to_owned()
}

fn template(dir: &Path, config: &Map<String, Value>) -> Result<Option<String>> {
    let file = dir.join("chat_template.jinja");
    if file.is_file() {
        return std::fs::read_to_string(&file).map(Some).map_err(Error::io(&file));
    }
    Ok(match config.get("chat_template") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(list)) => list
            .iter()
            .find(|t| t["name"] == "default")
            .and_then(|t| Some(t["template"].as_str()?.to_owned())),
        _ => None,
    })
}
