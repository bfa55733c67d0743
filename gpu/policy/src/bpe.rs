//! Makes a small byte-level BPE tokenizer for code and chat.

use std::path::Path;

use serde_json::json;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior::Isolated;
use tokenizers::{AddedToken, TokenizerBuilder};

use crate::error::{Error, Result};

/// The special tokens, in order of id.
pub const SPECIAL: [&str; 4] = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"];

/// Whole identifiers, single digits, runs of punctuation, a newline with its indentation, runs
/// of spaces. A word, a digit or punctuation may carry the one space before it.
const WORDS: &str = r" ?[\p{L}_]+| ?\p{N}| ?[^\s\p{L}\p{N}_]+|\n+ *| +|\s";

/// One token opens each message and one ends an answer; nothing else is spent.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>\
    {{ m.content }}<|end|>{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Learns `vocab` tokens from `texts` and writes tokenizer.json and tokenizer_config.json into
/// the folder `out`.
///
/// # Errors
/// A vocabulary too small for bytes and special tokens, or a file that cannot be written.
pub fn train(
    texts: impl Iterator<Item = String> + Send,
    vocab: usize,
    out: &Path,
) -> Result<usize> {
    let least = 256 + SPECIAL.len();
    if vocab < least {
        return Err(Error::Request(format!("vocab is {vocab}; bytes alone need {least}")));
    }
    let path = out.join("tokenizer.json");
    let fault =
        |e: tokenizers::Error| Error::Tokenizer { path: path.clone(), problem: e.to_string() };
    let split = Split::new(SplitPattern::Regex(WORDS.into()), Isolated, false).map_err(fault)?;
    let bytes = ByteLevel::new(false, true, false);
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(SPECIAL.iter().map(|s| AddedToken::from(*s, true)).collect())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut tokenizer = TokenizerBuilder::<BPE, tokenizers::NormalizerWrapper, _, _, _>::new()
        .with_model(BPE::default())
        .with_normalizer(None)
        .with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])))
        .with_post_processor(Some(bytes))
        .with_decoder(Some(bytes))
        .build()
        .map_err(fault)?;
    tokenizer.train(&mut trainer, texts).map_err(fault)?;
    std::fs::create_dir_all(out).map_err(Error::io(out))?;
    let text = tokenizer.to_string(true).map_err(fault)?;
    crate::files::write_bytes(&path, text.as_bytes())?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": false,
    });
    crate::files::write_bytes(&out.join("tokenizer_config.json"), config.to_string().as_bytes())?;
    Ok(tokenizer.get_vocab_size(true))
}
