//! What processes that train together, one for each device, do together.
//!
//! Every rank makes the same calls in the same order. Where one may fail by itself (memory, a number
//! that is not finite) all tell each other before anyone goes on, so that all are as before; a rank
//! that ends or hangs ends the work of all ([`Error::Ranks`]). A rank alone does nothing here.

use std::time::{Duration, Instant};

use collective::{Loss, Nccl, Star};
use tch::{Device, Tensor};

use crate::error::{Error, Result};
use crate::metrics::Clock;
use crate::moves::{bytes, bytes_mut, gather_on_host, on_stream, sum_on_host};
use crate::policy;
use crate::shard::Shard;

/// This process's place among the ranks.
pub struct Ranks {
    device: Device,
    group: Option<Group>,
}

struct Group {
    // Before the links, so that its end needs nobody else's.
    nccl: Option<Nccl>,
    star: Star,
}

impl Ranks {
    /// One rank.
    pub fn alone(device: Device) -> Self {
        Ranks { device, group: None }
    }

    /// The ranks on `devices`: in the process that was called by hand this starts the others, with the
    /// same command line; in those it finds rank 0. `deadline`: the longest that a rank may be silent
    /// when it is waited for.
    ///
    /// # Errors
    /// Devices that are not there, of two kinds or named twice; no libnccl; a rank that does not start.
    pub fn start(devices: &[String], deadline: Duration) -> Result<Self> {
        let refuse = |text: String| Err(Error::Request(format!("ranks: {text}")));
        let found: Vec<Device> =
            devices.iter().map(|w| policy::device(w)).collect::<Result<_>>()?;
        let Some(&first) = found.first() else { return refuse("no device is named".into()) };
        if found.len() == 1 {
            return Ok(Self::alone(first));
        }
        for (i, (device, word)) in found.iter().zip(devices).enumerate() {
            if matches!(device, Device::Cuda(_)) != matches!(first, Device::Cuda(_)) {
                return refuse("name CPUs or CUDA devices, not both".into());
            }
            if *device != Device::Cpu && found[..i].contains(device) {
                return refuse(format!("{word} is named twice; a device has one rank"));
            }
        }
        let world = found.len();
        let joined = collective::join(world, deadline)?;
        let mut star = joined.map_or_else(|| collective::start(world, deadline), Ok)?;
        let device = found[star.rank()];
        let nccl = match device {
            Device::Cuda(index) => {
                let id = if star.rank() == 0 { collective::nccl::unique_id()? } else { Vec::new() };
                let id = star.exchange(&id)?.swap_remove(0);
                Some(Nccl::join(&mut star, index, &id)?)
            }
            _ => {
                tch::set_num_threads((tch::get_num_threads() / world as i32).max(1));
                None
            }
        };
        Ok(Ranks { device, group: Some(Group { nccl, star }) })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, |g| g.star.rank())
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.group.as_ref().map_or(1, |g| g.star.world())
    }

    /// Where this rank computes.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The time since the last lap went into `part` that there is only among several.
    pub(crate) fn lap(&self, clock: &mut Clock, part: &'static str) {
        if self.group.is_some() {
            clock.lap(part);
        }
    }

    /// Rank 0 tells all others a request.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        match &mut self.group {
            Some(group) => Ok(group.star.tell(line.as_bytes())?),
            None => Ok(()),
        }
    }

    /// The next request that rank 0 tells; `None` once it has ended.
    pub(crate) fn hear(&mut self) -> Result<Option<String>> {
        let Some(group) = &mut self.group else { return Ok(None) };
        let frame = group.star.hear()?;
        Ok(frame.map(|frame| String::from_utf8_lossy(&frame).into_owned()))
    }

    /// Of another rank than 0: tells rank 0 something while both work.
    pub(crate) fn report(&mut self, frame: &[u8]) -> Result<()> {
        match &mut self.group {
            Some(group) => Ok(group.star.report(frame)?),
            None => Ok(()),
        }
    }

    /// Of rank 0: what another reports within `time`.
    pub(crate) fn next_report(&mut self, time: Duration) -> Result<Option<(usize, Vec<u8>)>> {
        match &mut self.group {
            Some(group) => Ok(group.star.next_report(time)?),
            None => Ok(None),
        }
    }

    /// Of rank 0: names the next rank as lost if nobody has reported since `heard` for longer than the
    /// deadline.
    pub(crate) fn overdue(&mut self, heard: Instant) -> Result<()> {
        match &mut self.group {
            Some(group) if heard.elapsed() > group.star.deadline() => {
                Err(group.star.silent().into())
            }
            _ => Ok(()),
        }
    }

    /// Of another rank than 0: whether rank 0 has something to say, or has ended.
    pub(crate) fn called(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.star.called())
    }

    /// Everyone's numbers, in order of ranks, once all have come here.
    ///
    /// # Errors
    /// This rank's own, or another's: then it is an error on all ranks.
    pub fn gather(&mut self, own: Result<Vec<f64>>) -> Result<Vec<Vec<f64>>> {
        let Some(group) = &mut self.group else { return own.map(|own| vec![own]) };
        let frame = match &own {
            Ok(numbers) => {
                std::iter::once(0).chain(numbers.iter().flat_map(|n| n.to_le_bytes())).collect()
            }
            Err(e) if e.ends_ranks() => return own.map(|own| vec![own]),
            Err(e) => [&[1], e.to_string().as_bytes()].concat(),
        };
        let all = group.star.exchange(&frame)?;
        own?;
        let one = |(rank, frame): (usize, Vec<u8>)| match frame.split_first() {
            Some((0, numbers)) => {
                let number = |b: &[u8]| b.try_into().map_or(f64::NAN, f64::from_le_bytes);
                Ok(numbers.chunks_exact(8).map(number).collect())
            }
            Some((_, text)) => {
                Err(Error::Rank { rank, problem: String::from_utf8_lossy(text).into_owned() })
            }
            None => Err(Error::Rank { rank, problem: "answered nothing".into() }),
        };
        all.into_iter().enumerate().map(one).collect()
    }

    /// `own`, if it is well on all ranks.
    ///
    /// # Errors
    /// As [`Ranks::gather`].
    pub fn agree<T>(&mut self, own: Result<T>) -> Result<T> {
        if self.group.is_none() {
            return own;
        }
        let (own, word) = match own {
            Ok(own) => (Some(own), Ok(Vec::new())),
            Err(e) => (None, Err(e)),
        };
        self.gather(word)?;
        own.ok_or_else(|| Error::Request("a rank has lost its answer".into()))
    }

    /// `own`; where it is an error, the ranks are no longer of one mind and end.
    pub(crate) fn or_end<T>(&self, own: Result<T>) -> Result<T> {
        own.map_err(|e| match &self.group {
            None => e,
            Some(_) if e.ends_ranks() => e,
            Some(group) => {
                let problem = Loss::Failed(e.to_string());
                Error::Ranks(collective::Error::Lost { rank: group.star.rank(), problem })
            }
        })
    }

    /// Sums `whole` `[shard.padded()]` over the ranks: afterwards each has the sum in its part, the rest
    /// is undefined. Sums have a fixed order.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn reduce_scatter(&mut self, whole: &Tensor, shard: &Shard) -> Result<()> {
        let Some(group) = &mut self.group else { return Ok(()) };
        let done = match &group.nccl {
            Some(nccl) => on_stream(whole, |number, data, stream| {
                let piece = shard.piece() as usize;
                // SAFETY: the tensor has `padded` numbers, which are the pieces of all ranks.
                unsafe { nccl.reduce_scatter(&mut group.star, data, piece, number, stream) }
            }),
            None => sum_on_host(&mut group.star, whole, shard),
        };
        self.or_end(done)
    }

    /// Gives all ranks all parts of `whole` `[shard.padded()]`.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn all_gather(&mut self, whole: &Tensor, shard: &Shard) -> Result<()> {
        let Some(group) = &mut self.group else { return Ok(()) };
        let done = match &group.nccl {
            Some(nccl) => on_stream(whole, |number, data, stream| {
                let piece = shard.piece() as usize;
                // SAFETY: the tensor has `padded` numbers, which are the pieces of all ranks.
                unsafe { nccl.all_gather(&mut group.star, data, piece, number, stream) }
            }),
            None => gather_on_host(&mut group.star, whole, shard),
        };
        self.or_end(done)
    }

    /// Gives all ranks what rank 0 has in `tensor`, which is contiguous.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn broadcast(&mut self, tensor: &Tensor) -> Result<()> {
        let Some(group) = &mut self.group else { return Ok(()) };
        let done = match &group.nccl {
            Some(nccl) => on_stream(tensor, |number, data, stream| {
                // SAFETY: the tensor has so many numbers.
                unsafe { nccl.broadcast(&mut group.star, data, tensor.numel(), number, stream) }
            }),
            None => {
                let (world, star) = (group.star.world(), &mut group.star);
                match star.rank() {
                    0 => (1..world).try_for_each(|r| Ok(star.send(r, bytes(tensor)?)?)),
                    _ => bytes_mut(tensor).and_then(|to| Ok(star.receive(0, to)?)),
                }
            }
        };
        self.or_end(done)
    }

    /// Of rank 0: the numbers `at .. at + n` of what ranks hold in parts, on the host. `own` is this
    /// rank's part, `key` what the others know it by; they [`Ranks::lend`] meanwhile.
    pub(crate) fn borrow(
        &mut self,
        own: &Tensor,
        shard: &Shard,
        key: u8,
        at: i64,
        n: i64,
    ) -> Result<Tensor> {
        let Some(group) = &mut self.group else { return Ok(own.f_narrow(0, at, n)?) };
        let into = Tensor::f_empty([n], (own.f_kind()?, Device::Cpu))?;
        for rank in 0..group.star.world() {
            let part = shard.of_rank(rank);
            let Some((from, some)) = part.cut(at, n) else { continue };
            let place = into.f_narrow(0, from - at, some)?;
            if rank == 0 {
                place.shallow_clone().f_copy_(&own.f_narrow(0, from, some)?)?;
                continue;
            }
            let [first, count] = [from - part.start(), some].map(i64::to_le_bytes);
            let order = [&[key][..], &first, &count].concat();
            group.star.order(rank, &order)?;
            group.star.receive(rank, bytes_mut(&place)?)?;
        }
        Ok(into)
    }

    /// Of rank 0: the others need lend no more.
    pub(crate) fn enough(&mut self) -> Result<()> {
        self.tell("")
    }

    /// Of the other ranks: lends rank 0 numbers of the parts that `own(key)` names, until it has enough.
    pub(crate) fn lend<'a>(&mut self, own: impl Fn(u8) -> Option<&'a Tensor>) -> Result<()> {
        let Some(group) = &mut self.group else { return Ok(()) };
        let rank = group.star.rank();
        let broken = |problem: &str| {
            Error::Ranks(collective::Error::Lost { rank: 0, problem: Loss::Broken(problem.into()) })
        };
        loop {
            let order =
                group.star.hear()?.ok_or_else(|| broken("ended in the middle of a save"))?;
            if order.is_empty() {
                return Ok(());
            }
            let word = |from: usize| {
                let bytes = order.get(from..from + 8).and_then(|b| b.try_into().ok());
                bytes.map(i64::from_le_bytes).ok_or_else(|| broken("an order of no sense"))
            };
            let (at, n) = (word(1)?, word(9)?);
            let part = own(order[0]).ok_or_else(|| broken("an order of what is not there"))?;
            let copied = || -> Result<Tensor> {
                Ok(part.f_narrow(0, at, n)?.f_to_device(Device::Cpu)?.f_contiguous()?)
            };
            // Rank 0 waits for it: without it there is no going on.
            let part = copied().map_err(|e| {
                let problem = Loss::Failed(e.to_string());
                Error::Ranks(collective::Error::Lost { rank, problem })
            })?;
            group.star.send(0, bytes(&part)?)?;
        }
    }
}
