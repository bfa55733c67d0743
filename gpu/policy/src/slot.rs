//! A model in memory, with what trains it.

use tch::{Device, Kind};

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::lora_file;
use crate::optim::AdamW;
use crate::policy::{self, Open, Policy};
use crate::protocol::Load;
use crate::ranks::Ranks;
use crate::reply::SlotInfo;

/// A model in memory.
pub(crate) struct Slot {
    pub(crate) policy: Policy,
    pub(crate) optim: Option<AdamW>,
}

impl Slot {
    /// Opens what `load` names, all of it or nothing; of what is to be trained, this rank's part of the
    /// masters and moments. Among several ranks each has a device of its own.
    ///
    /// # Errors
    /// The files', or arguments that contradict each other.
    pub(crate) fn load(load: &Load, ranks: &Ranks) -> Result<Self> {
        let refuse = |text: &str| Err(Error::Request(text.into()));
        if (load.optimizer.is_some() || load.lora.is_some()) && !load.trainable {
            return refuse("`optimizer` and `lora` need `trainable`");
        }
        if load.lora.is_some() && load.adapter.is_some() {
            return refuse("give `lora` for a new adapter or `adapter` for one of a folder");
        }
        let adapted = load.lora.is_some() || load.adapter.is_some();
        if load.hosted && (load.trainable || adapted) {
            return refuse("`hosted` is for a reference: it can neither train nor have an adapter");
        }
        let kind = load.dtype.as_deref().map(policy::kind).transpose()?;
        // The weights under an adapter do not train.
        let trainable = load.trainable && !adapted;
        let device = match ranks.world() {
            1 => policy::device(&load.device)?,
            _ => ranks.device(),
        };
        let open = Open { device, kind, trainable };
        let mut policy = match load.hosted {
            true => Policy::open_hosted(&load.dir, open)?,
            false => Policy::open(&load.dir, open)?,
        };
        policy.model.adapter = match (&load.lora, &load.adapter) {
            (Some(lora), _) => Some(Adapter::new(&policy.model, lora.clone(), load.seed)?),
            (None, Some(dir)) => Some(lora_file::load(&policy.model, dir)?),
            (None, None) => None,
        };
        if load.trainable {
            policy.model.trained_mut().divide(ranks.rank(), ranks.world())?;
        }
        let params = policy.model.trained();
        let optim = match &load.optimizer {
            Some(path) => Some(checkpoint::load_optimizer(params, path)?),
            None if load.trainable => Some(AdamW::new(params)?),
            None => None,
        };
        Ok(Slot { policy, optim })
    }

    /// Bytes of memory while a step is taken.
    pub(crate) fn bytes(&self) -> u64 {
        let model = &self.policy.model;
        let adapter = model.adapter.as_ref().map_or(0, |a| a.params.bytes());
        model.params.bytes() + adapter + self.optim.as_ref().map_or(0, AdamW::bytes)
    }

    /// What `load` and `info` say of it.
    pub(crate) fn describe(&self, name: &str) -> Result<SlotInfo> {
        let model = &self.policy.model;
        Ok(SlotInfo {
            slot: name.into(),
            architecture: format!("{:?}", model.config.architecture),
            parameters: model.config.parameters(),
            context: model.config.context,
            vocab: model.config.vocab,
            device: match model.device {
                Device::Cuda(n) => format!("cuda:{n}"),
                _ => "cpu".into(),
            },
            dtype: match model.kind {
                Kind::Float => "f32".into(),
                Kind::BFloat16 => "bf16".into(),
                other => format!("{other:?}").to_lowercase(),
            },
            trainable: self.optim.is_some(),
            step: self.optim.as_ref().map_or(0, |o| o.step),
        })
    }
}
