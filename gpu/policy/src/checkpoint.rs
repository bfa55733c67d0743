//! Checkpoints: the same state gives the same bytes, and a resumed training goes on exactly.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::files;
use crate::fill::Fill;
use crate::lora_file;
use crate::master;
use crate::optim::AdamW;
use crate::params::Params;
use crate::policy::Policy;
use crate::ranks::Ranks;

/// The optimizer's file in a checkpoint folder.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";

/// What the optimizer's file says beside its tensors.
#[derive(Serialize, Deserialize)]
struct State {
    step: u64,
    beta1: f64,
    beta2: f64,
}

/// The parts of a training's state, by what ranks call them.
const MOMENTS: [u8; 2] = [b'm', b'v'];
const LOW: u8 = b'l';

/// A training's state, wherever its parts are.
struct Source<'a> {
    params: &'a Params,
    /// Bytes of a file of weights at most.
    shard: u64,
    ranks: RefCell<&'a mut Ranks>,
}

impl Source<'_> {
    fn part(&self, key: u8, own: &Tensor, at: i64, n: i64) -> Result<Tensor> {
        self.ranks.borrow_mut().borrow(own, &self.params.shard, key, at, n)
    }

    fn master(&self, at: i64, n: i64) -> Result<Tensor> {
        match &self.params.low {
            Some(low) if self.params.shard.world() > 1 => {
                let low = self.part(LOW, low, at, n)?;
                master::join(&self.params.flat.f_narrow(0, at, n)?.f_to_device(low.device())?, &low)
            }
            _ => self.params.read_master(at, n),
        }
    }
}

/// Writes `policy` into the folder `dir`; of a model with an adapter, the adapter alone, as PEFT
/// stores it.
///
/// # Errors
/// As [`save_model`].
pub fn save(policy: &Policy, optim: Option<&AdamW>, dir: &Path, kind: Kind) -> Result<()> {
    let mut ranks = Ranks::alone(policy.model.device);
    save_among(policy, optim, dir, kind, files::SHARD_BYTES, &mut ranks)
}

/// The same where ranks train together: rank 0 writes, the others lend it their parts. Files of weights
/// have at most `shard` bytes.
///
/// # Errors
/// As [`save_model`]; a rank that is lost.
pub fn save_among(
    policy: &Policy,
    optim: Option<&AdamW>,
    dir: &Path,
    kind: Kind,
    shard: u64,
    ranks: &mut Ranks,
) -> Result<()> {
    let params = policy.model.trained();
    if ranks.rank() > 0 {
        let moments = |o: &'_ AdamW| [o.m.shallow_clone(), o.v.shallow_clone()];
        let moments = optim.map(moments);
        return ranks.lend(|key| match key {
            LOW => params.low.as_ref(),
            _ => {
                MOMENTS.iter().position(|k| *k == key).and_then(|i| moments.as_ref().map(|m| &m[i]))
            }
        });
    }
    let source = Source { params, shard, ranks: RefCell::new(ranks) };
    let written = save_from(policy, optim, dir, kind, &source);
    let lent = source.ranks.borrow_mut().enough();
    // A rank that is lost ends all of them, whatever else went wrong.
    lent.and(written)
}

fn save_from(
    policy: &Policy,
    optim: Option<&AdamW>,
    dir: &Path,
    kind: Kind,
    source: &Source,
) -> Result<()> {
    let Some(adapter) = &policy.model.adapter else {
        return write_model(policy, optim, dir, kind, source);
    };
    std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
    if let Some(optim) = optim {
        save_optimizer(source, optim, &dir.join(OPTIMIZER_FILE), kind != Kind::Float)?;
    }
    lora_file::save(adapter, dir, kind, |at, n| source.master(at, n))
}

/// Writes the model's weights (with a merged adapter in them) into the folder `dir` (made if absent) as Hugging Face files, and the
/// optimizer beside it. Weights are stored as `kind`; where that is not float32, the float32
/// master goes into the optimizer's file.
///
/// # Errors
/// The system's, with the file. Each file is written whole or not at all, the weights last.
pub fn save_model(policy: &Policy, optim: Option<&AdamW>, dir: &Path, kind: Kind) -> Result<()> {
    let mut ranks = Ranks::alone(policy.model.device);
    let (params, shard) = (&policy.model.params, files::SHARD_BYTES);
    let source = Source { params, shard, ranks: RefCell::new(&mut ranks) };
    write_model(policy, optim, dir, kind, &source)
}

fn write_model(
    policy: &Policy,
    optim: Option<&AdamW>,
    dir: &Path,
    kind: Kind,
    source: &Source,
) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let params = &policy.model.params;
    let mut config = policy.model.config.to_json();
    config["torch_dtype"] = if kind == Kind::Float { "float32" } else { "bfloat16" }.into();
    let text = serde_json::to_string_pretty(&config);
    let path = dir.join("config.json");
    let text = text.map_err(|source| Error::Json { path: path.clone(), source })?;
    files::write_bytes(&path, text.as_bytes())?;
    policy.text.copy_files(dir)?;
    if let Some(optim) = optim {
        save_optimizer(source, optim, &dir.join(OPTIMIZER_FILE), kind != Kind::Float)?;
    }
    let weights = params.export("", kind, |at, n| source.master(at, n));
    files::write_weights(dir, weights, source.shard)
}

fn save_optimizer(source: &Source, optim: &AdamW, path: &Path, master: bool) -> Result<()> {
    let params = source.params;
    let [m, v] = MOMENTS;
    let mut tensors = params.export("m.", Kind::Float, |at, n| source.part(m, &optim.m, at, n));
    tensors.extend(params.export("v.", Kind::Float, |at, n| source.part(v, &optim.v, at, n)));
    if master {
        let read = |at, n| source.master(at, n);
        tensors.extend(params.export("master.", Kind::Float, read));
    }
    let state = State { step: optim.step, beta1: optim.beta1, beta2: optim.beta2 };
    let text = serde_json::to_string(&state)
        .map_err(|source| Error::Json { path: path.to_owned(), source })?;
    files::write(path, &tensors, "state", &text)
}

/// Reads an optimizer's file, and the master weights if it holds them.
///
/// # Errors
/// A file of another model, a missing tensor, no step count.
pub fn load_optimizer(params: &Params, path: &Path) -> Result<AdamW> {
    let _guard = tch::no_grad_guard();
    let mut optim = AdamW::new(params)?;
    let fill = Fill::new(&params.specs);
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let metadata = files::visit(path, |name, tensor| {
        let unknown = || Error::UnexpectedTensor { path: path.to_owned(), names: name.into() };
        let (part, rest) = name.split_once('.').ok_or_else(unknown)?;
        let into = |own: &Tensor, at: i64, values: &Tensor| {
            let Some((from, n)) = params.shard.cut(at, values.numel() as i64) else {
                return Ok(());
            };
            let mut place = own.f_narrow(0, from - params.shard.start(), n)?;
            Ok(place.f_copy_(&values.f_view([-1])?.f_narrow(0, from - at, n)?)?)
        };
        let part = match part {
            "m" => {
                fill.copy(path, rest, &tensor, |at, v| into(&optim.m, at, v))?;
                "m"
            }
            "v" => {
                fill.copy(path, rest, &tensor, |at, v| into(&optim.v, at, v))?;
                "v"
            }
            "master" => {
                fill.copy(path, rest, &tensor, |at, v| params.write_master(at, v))?;
                "master"
            }
            _ => return Err(unknown()),
        };
        seen.entry(part).or_default().insert(rest.to_owned());
        Ok(())
    })?;
    for part in ["m", "v"] {
        fill.complete(path, seen.get(part).unwrap_or(&BTreeSet::new()))?;
    }
    if let Some(names) = seen.get("master") {
        fill.complete(path, names)?;
    }
    let text = metadata.get("state").map_or("", String::as_str);
    let state: State = serde_json::from_str(text)
        .map_err(|source| Error::Json { path: path.to_owned(), source })?;
    (optim.step, optim.beta1, optim.beta2) = (state.step, state.beta1, state.beta2);
    Ok(optim)
}
