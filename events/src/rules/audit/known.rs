//! What an audit works out once for a step and not for each of its events. It gives the answers that
//! [`crate::rules::work`] and [`crate::rules::score`] give, one at a time: `tests/resume.rs` and
//! `tests/care.rs` hold both to the same logs.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::super::api_table::ApiTable;
use super::super::control::sampling_step;
use super::super::prompt;
use super::super::score::{self, Complete};
use super::super::work::{self, SetOrder, Task};
use super::{Evidence, text};
use crate::config::{PolicyConfig, RunConfig};
use crate::event::{Event, Validity};
use crate::ids::{ApiSetId, BlobId, GroupId, KernelId, ModuleId, Role, RunId, StepRef, seed_at};
use crate::sample::Frame;
use crate::state::{KernelEntry, ModuleEntry, RunState, SetEntry};

/// The API table, read once.
struct Table {
    id: BlobId,
    table: ApiTable,
    apis: BTreeSet<String>,
    /// How APIs are weighted in this round.
    factors: Option<Vec<f64>>,
}

/// Kept from event to event; each part is thrown away by the events that change it.
#[derive(Default)]
pub(super) struct Known {
    table: Option<Table>,
    /// Places of the open step's API sets, once all are drawn.
    sets: Option<BTreeMap<ApiSetId, u32>>,
    /// Where the members of each group are found.
    groups: Option<BTreeMap<GroupId, Members>>,
    tasks: Option<BTreeMap<ModuleId, Task>>,
    /// What was asked last: the answers to one prompt follow each other.
    asked: Option<Asked>,
}

/// What a model is asked.
pub(super) struct Asked {
    /// The set or module that it is for.
    of: Uuid,
    pub prompt: String,
    /// What its answers' samples begin and end with.
    pub frame: Frame,
}

#[derive(Clone, Copy)]
enum Members {
    /// Modules of the API set at this place.
    Modules(u32),
    /// Kernels of this module.
    Kernels(ModuleId),
}

/// An answer that is wanted: its index, its seed, and what it is an answer to.
pub(super) struct Slot<From> {
    pub index: u32,
    pub seed: u64,
    pub from: From,
}

impl Known {
    /// Throws away what `event` changes.
    pub fn pass(&mut self, event: &Event) {
        match event {
            Event::ModuleProposed { .. } | Event::ModuleValidated { .. } => self.tasks = None,
            Event::SettingChanged { .. } | Event::RoundFinished { .. } => self.pass_settings(),
            // Planned settings act from here on.
            Event::PhaseStarted { .. } | Event::StepTaken { .. } => {
                self.pass_settings();
                (self.sets, self.groups, self.tasks) = (None, None, None);
            }
            Event::RunStarted { .. }
            | Event::RunForked { .. }
            | Event::SamplesExcluded { .. }
            | Event::ApisSampled { .. } => {
                (self.sets, self.groups, self.tasks) = (None, None, None);
            }
            _ => {}
        }
    }

    fn pass_settings(&mut self) {
        self.asked = None;
        self.table.iter_mut().for_each(|table| table.factors = None);
    }

    fn table(&mut self, state: &RunState, evidence: &dyn Evidence) -> Result<&mut Table, String> {
        let id = state.api_table.ok_or("no API table")?;
        if self.table.as_ref().is_none_or(|known| known.id != id) {
            let text = text(evidence, id)?;
            let table = ApiTable::parse(&text).map_err(|e| e.to_string())?;
            self.table = Some(Table { id, apis: table.apis(), table, factors: None });
        }
        self.table.as_mut().ok_or_else(|| "no API table".to_owned())
    }

    /// The APIs that `order` gets now.
    pub fn draw(
        &mut self,
        state: &RunState,
        evidence: &dyn Evidence,
        order: &SetOrder,
    ) -> Result<Vec<String>, String> {
        let Table { table, factors, .. } = self.table(state, evidence)?;
        let factors = factors.get_or_insert_with(|| work::api_factors(state, table));
        Ok(work::draw_weighted(state, table, factors, order))
    }

    /// All APIs of the table.
    pub fn apis(
        &mut self,
        state: &RunState,
        evidence: &dyn Evidence,
    ) -> Result<&BTreeSet<String>, String> {
        Ok(&self.table(state, evidence)?.apis)
    }

    /// Where the open Proposer step takes this set, if it lacks it.
    pub fn set(state: &RunState, set: ApiSetId, index: u32) -> Option<SetOrder> {
        let (step, cause) = sampling_step(state).filter(|(step, _)| step.role == Role::Proposer)?;
        let wanted = index < state.config.as_ref()?.proposer.policy.batch_prompts.get()
            && !state.open.sets.contains_key(&index)
            && ApiSetId::at(state.branch()?, step, index) == set;
        let seed = seed_at(state.seed(), "api-set", step, index);
        wanted.then_some(SetOrder { set, step, index, seed, cause })
    }

    /// Where the open step takes this module, if it lacks it.
    pub fn module<'s>(
        &mut self,
        state: &'s RunState,
        set: ApiSetId,
        (module, index): (ModuleId, u32),
    ) -> Option<Slot<&'s SetEntry>> {
        let (step, _) = sampling_step(state).filter(|(step, _)| step.role == Role::Proposer)?;
        let config = &state.config.as_ref()?.proposer.policy;
        if self.sets.is_none() {
            let whole = (0..config.batch_prompts.get()).all(|i| state.open.sets.contains_key(&i));
            let places = || state.open.sets.iter().map(|(place, set)| (set.id, *place)).collect();
            self.sets = whole.then(places);
        }
        let place = *self.sets.as_ref()?.get(&set)?;
        let from = state.open.sets.get(&place)?;
        let group = config.group_size.get();
        let wanted = index < group
            && !from.modules.contains_key(&index)
            && ModuleId::at(set, step, index) == module;
        let seed = seed_at(state.seed(), "module", step, place * group + index);
        wanted.then_some(Slot { index, seed, from })
    }

    /// The module, if it lacks a verdict, and what it was asked to use.
    pub fn unvalidated(state: &RunState, module: ModuleId) -> Option<(&ModuleEntry, &[String])> {
        sampling_step(state)?;
        let entry = state.open.modules.get(&module).filter(|m| m.validity.is_none())?;
        let asked = state.open.sets.get(&entry.set).map_or(&[][..], |set| set.apis.as_slice());
        Some((entry, asked))
    }

    fn task(&mut self, state: &RunState, module: ModuleId) -> Option<&Task> {
        state.open_step()?;
        let all = || work::tasks(state).into_iter().map(|task| (task.module, task)).collect();
        self.tasks.get_or_insert_with(all).get(&module)
    }

    /// Where the open step takes this kernel, if it lacks it.
    pub fn kernel(
        &mut self,
        state: &RunState,
        module: ModuleId,
        (kernel, index): (KernelId, u32),
    ) -> Option<Slot<BlobId>> {
        let ((step, _), branch) = (sampling_step(state)?, state.branch()?);
        let count = work::kernels_per_task(state, step.role);
        let from = self.task(state, module)?;
        let wanted = index < count
            && !state.open.kernels.contains_key(&(module, index))
            && KernelId::at(branch, module, step, index) == kernel;
        let seed = seed_at(state.seed(), "kernel", step, from.place * count + index);
        wanted.then_some(Slot { index, seed, from: from.source })
    }

    /// What the Proposer is asked for a set.
    pub fn asked_for_set(&mut self, config: &RunConfig, set: &SetEntry) -> Result<&Asked, String> {
        let policy = &config.proposer.policy;
        self.asked(policy, set.id.0, || Ok(prompt::for_apis(&policy.prompt, &set.apis)))
    }

    /// What the Coder is asked for a module.
    pub fn asked_for_module(
        &mut self,
        config: &RunConfig,
        module: ModuleId,
        source: BlobId,
        evidence: &dyn Evidence,
    ) -> Result<&Asked, String> {
        let policy = &config.coder.policy;
        self.asked(policy, module.0, || {
            Ok(prompt::for_module(&policy.prompt, &text(evidence, source)?))
        })
    }

    /// What was asked last, or what `prompt` makes if that was for another set or module.
    fn asked(
        &mut self,
        policy: &PolicyConfig,
        of: Uuid,
        prompt: impl FnOnce() -> Result<String, String>,
    ) -> Result<&Asked, String> {
        if self.asked.as_ref().is_none_or(|asked| asked.of != of) {
            let prompt = prompt()?;
            let frame = Frame::of(&prompt, &policy.sampling()).map_err(|e| e.to_string())?;
            self.asked = Some(Asked { of, prompt, frame });
        }
        self.asked.as_ref().ok_or_else(|| "nothing was asked".to_owned())
    }

    /// The kernel, if it is one of the open step's tasks.
    pub fn written<'s>(
        &mut self,
        state: &'s RunState,
        kernel: KernelId,
    ) -> Option<&'s KernelEntry> {
        let entry = state.open.kernel.get(&kernel)?;
        self.task(state, entry.module)?;
        Some(entry)
    }

    /// The scores of `group`, if it is complete and has none yet.
    pub fn group(&mut self, state: &RunState, group: GroupId) -> Option<Complete> {
        let ((step, _), branch) = (sampling_step(state)?, state.branch()?);
        let config = state.config.as_ref()?;
        if state.open.scored.contains_key(&group) {
            return None;
        }
        if self.groups.is_none() {
            self.groups = Some(groups(state, step, branch));
        }
        match *self.groups.as_ref()?.get(&group)? {
            Members::Kernels(module) => {
                score::kernel_group(state, config, step, self.task(state, module)?)
            }
            Members::Modules(place) => {
                let set = state.open.sets.get(&place)?;
                let valid = |module: &&ModuleId| {
                    let entry = state.open.modules.get(module);
                    matches!(entry.and_then(|m| m.validity.as_ref()), Some((_, Validity::Valid)))
                };
                let valid: Vec<ModuleId> = set.modules.values().filter(valid).copied().collect();
                let ready: Vec<Task> =
                    valid.into_iter().filter_map(|m| self.task(state, m).cloned()).collect();
                score::module_group(state, config, step, set, &ready)
            }
        }
    }
}

fn groups(state: &RunState, step: StepRef, branch: RunId) -> BTreeMap<GroupId, Members> {
    match step.role {
        Role::Proposer => {
            let sets = state.open.sets.iter();
            let of = |(place, set): (&u32, &SetEntry)| {
                (GroupId::of_modules(set.id, step), Members::Modules(*place))
            };
            sets.map(of).collect()
        }
        Role::Coder => {
            let of = |task: Task| {
                let group = GroupId::of_kernels(branch, task.module, step);
                (group, Members::Kernels(task.module))
            };
            work::tasks(state).into_iter().map(of).collect()
        }
    }
}
