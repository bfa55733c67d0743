//! All ranks around rank 0.

use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::error::{Error, Loss, Result};
use crate::wire::Wire;

/// How long an ended process may take to be known as that.
const BURIAL: Duration = Duration::from_secs(2);
/// How long a killed one may take: it gives back all of a device's memory.
const KILLED: Duration = Duration::from_secs(30);

/// Rank 0's side of another rank.
struct Peer {
    wire: Wire,
    child: Option<Child>,
}

enum Links {
    /// Of rank 0: ranks 1, 2, …
    Hub(Vec<Peer>),
    /// Of another: rank 0.
    Spoke(Wire),
}

/// This process's links to the others. Calls come in the same order on all ranks.
pub struct Star {
    rank: usize,
    world: usize,
    links: Links,
    deadline: Duration,
}

impl Star {
    /// Rank 0, with the sockets and processes of the others. `deadline`: the longest that a rank may be
    /// silent when it is waited for.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub fn hub(others: Vec<(UnixStream, Option<Child>)>, deadline: Duration) -> Result<Self> {
        let world = others.len() + 1;
        let peer = |(i, (stream, child))| Peer { wire: Wire::new(stream, i + 1), child };
        let peers = others.into_iter().enumerate().map(peer).collect();
        Self { rank: 0, world, links: Links::Hub(peers), deadline }.greeted()
    }

    /// Rank `rank` of `world`, with its socket to rank 0.
    ///
    /// # Errors
    /// Rank 0 does not answer.
    pub fn spoke(rank: usize, world: usize, hub: UnixStream, deadline: Duration) -> Result<Self> {
        let links = Links::Spoke(Wire::new(hub, 0));
        Self { rank, world, links, deadline }.greeted()
    }

    fn greeted(mut self) -> Result<Self> {
        let time = self.patience();
        match &self.links {
            Links::Hub(peers) => peers.iter().try_for_each(|p| p.wire.patience(Some(time)))?,
            Links::Spoke(wire) => wire.patience(Some(time))?,
        }
        let greeting = |rank: usize, world: usize| format!("rank {rank} of {world}").into_bytes();
        let all = self.exchange(&greeting(self.rank, self.world))?;
        match (0..self.world).find(|&r| all.get(r) != Some(&greeting(r, self.world))) {
            None => Ok(self),
            Some(rank) => {
                let found = all.get(rank).map(|a| String::from_utf8_lossy(a).into_owned());
                let found = found.unwrap_or_default();
                Err(Error::Start(format!("rank {rank} of {} says `{found}`", self.world)))
            }
        }
    }

    /// Rank 0 waits for one rank after the other and is waited for meanwhile.
    fn patience(&self) -> Duration {
        if self.rank == 0 { self.deadline } else { self.deadline * 2 }
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The longest that a rank may be silent when it is waited for.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Everyone's frame, in order of ranks; returns once all ranks have come here.
    ///
    /// # Errors
    /// A rank is lost; rank 0 has then ended all others.
    pub fn exchange(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![own.to_vec()];
        if let Links::Spoke(wire) = &mut self.links {
            wire.send(own)?;
            all = (0..self.world).map(|_| wire.receive()).collect::<Result<_>>()?;
            return Ok(all);
        }
        for rank in 1..self.world {
            self.await_word(rank)?;
            all.push(self.on(rank, Wire::receive)?);
        }
        for rank in 1..self.world {
            self.on(rank, |wire| all.iter().try_for_each(|frame| wire.send(frame)))?;
        }
        Ok(all)
    }

    /// Rank 0 tells all others `frame`, which they [`Star::hear`].
    ///
    /// # Errors
    /// A rank is lost.
    pub fn tell(&mut self, frame: &[u8]) -> Result<()> {
        (1..self.world).try_for_each(|rank| self.on(rank, |wire| wire.send(frame)))
    }

    /// Rank 0 tells `rank` alone, which hears it.
    ///
    /// # Errors
    /// The rank is lost.
    pub fn order(&mut self, rank: usize, frame: &[u8]) -> Result<()> {
        self.on(rank, |wire| wire.send(frame))
    }

    /// What rank 0 tells, however long that takes; `None` once rank 0 has ended.
    ///
    /// # Errors
    /// The link is broken in the middle of a frame.
    pub fn hear(&mut self) -> Result<Option<Vec<u8>>> {
        let time = self.patience();
        let Links::Spoke(wire) = &mut self.links else { return Ok(None) };
        let mut poll = libc::pollfd { fd: wire.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor that is open; the call writes to `poll` alone.
        while unsafe { libc::poll(&raw mut poll, 1, milliseconds(time)) } == 0 {}
        wire.receive_if_any()
    }

    /// Of another rank: tells rank 0 something, which takes it by [`Star::next_report`].
    ///
    /// # Errors
    /// Rank 0 is lost.
    pub fn report(&mut self, frame: &[u8]) -> Result<()> {
        self.on(0, |wire| wire.send(frame))
    }

    /// Of rank 0: the next report of any rank, if one comes within `time`.
    ///
    /// # Errors
    /// A rank is lost.
    pub fn next_report(&mut self, time: Duration) -> Result<Option<(usize, Vec<u8>)>> {
        let Some(rank) = self.readable(time) else { return Ok(None) };
        match self.on(rank, Wire::receive_if_any)? {
            Some(frame) => Ok(Some((rank, frame))),
            None => Err(self.bury(rank, Loss::Ended(None))),
        }
    }

    /// Of another rank: whether rank 0 has told something that was not heard yet, or has ended.
    pub fn called(&self) -> bool {
        self.readable(Duration::ZERO).is_some()
    }

    /// Sends raw bytes to `rank`, which must receive as many. One of the two is rank 0.
    ///
    /// # Errors
    /// The rank is lost.
    pub fn send(&mut self, rank: usize, bytes: &[u8]) -> Result<()> {
        self.on(rank, |wire| wire.write(bytes))
    }

    /// Fills `into` with bytes that `rank` sends.
    ///
    /// # Errors
    /// The rank is lost.
    pub fn receive(&mut self, rank: usize, into: &mut [u8]) -> Result<()> {
        self.await_word(rank)?;
        self.on(rank, |wire| wire.read(into))
    }

    /// Whether all whom this rank is linked to are there, without waiting.
    ///
    /// # Errors
    /// One is not.
    pub fn watch(&mut self) -> Result<()> {
        match self.poll(None, Duration::ZERO).1 {
            None => Ok(()),
            Some(rank) => Err(self.bury(rank, Loss::Ended(None))),
        }
    }

    fn wires(&self) -> Vec<(usize, &Wire)> {
        match &self.links {
            Links::Hub(peers) => peers.iter().enumerate().map(|(i, p)| (i + 1, &p.wire)).collect(),
            Links::Spoke(wire) => vec![(0, wire)],
        }
    }

    /// A rank that has sent something or has ended, if there is one within `time`.
    fn readable(&self, time: Duration) -> Option<usize> {
        let wires = self.wires();
        let one =
            |w: &(usize, &Wire)| libc::pollfd { fd: w.1.fd(), events: libc::POLLIN, revents: 0 };
        let mut polls: Vec<libc::pollfd> = wires.iter().map(one).collect();
        // SAFETY: as many open descriptors as said; the call writes to `polls` alone.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, milliseconds(time)) };
        polls.iter().position(|p| p.revents != 0).map(|i| wires[i].0)
    }

    /// Waits for something to happen: how many links it happened on, and a rank that has ended, if
    /// there is one other than `wanted`. Of that one a word is awaited.
    fn poll(&self, wanted: Option<usize>, time: Duration) -> (i32, Option<usize>) {
        let wires = self.wires();
        let one = |&(rank, wire): &(usize, &Wire)| {
            let events = if wanted == Some(rank) { libc::POLLIN } else { libc::POLLRDHUP };
            libc::pollfd { fd: wire.fd(), events, revents: 0 }
        };
        let mut polls: Vec<libc::pollfd> = wires.iter().map(one).collect();
        // SAFETY: as many open descriptors as said; the call writes to `polls` alone.
        let count =
            unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, milliseconds(time)) };
        let gone = polls.iter().zip(&wires).find(|(p, w)| p.revents != 0 && Some(w.0) != wanted);
        (count, gone.map(|(_, w)| w.0))
    }

    /// Of rank 0: waits until `rank` has sent something. Another rank that has ended meanwhile would be
    /// waited for in vain later.
    fn await_word(&mut self, rank: usize) -> Result<()> {
        if self.rank != 0 {
            return Ok(());
        }
        match self.poll(Some(rank), self.deadline) {
            (_, Some(gone)) => Err(self.bury(gone, Loss::Ended(None))),
            (0, None) => Err(self.bury(rank, Loss::Silent)),
            _ => Ok(()),
        }
    }

    /// Does `f` with the link to `rank`.
    fn on<T>(&mut self, rank: usize, f: impl FnOnce(&mut Wire) -> Result<T>) -> Result<T> {
        let done = match &mut self.links {
            Links::Spoke(wire) => f(wire),
            Links::Hub(peers) => match peers.get_mut(rank.wrapping_sub(1)) {
                Some(peer) => f(&mut peer.wire),
                None => return Err(Error::Start(format!("there is no rank {rank}"))),
            },
        };
        match done {
            Err(Error::Lost { rank, problem }) => Err(self.bury(rank, problem)),
            other => other,
        }
    }

    /// Gives up waiting for whoever was silent. Nobody knows which rank that is where several are
    /// waited for: rank 0 names the next, another rank 0.
    pub fn silent(&mut self) -> Error {
        let several = self.world > 2;
        let problem = if several { Loss::OneSilent } else { Loss::Silent };
        self.bury(usize::from(self.rank == 0), problem)
    }

    /// The loss of `rank`, with how its process ended; rank 0 ends all others, too.
    pub(crate) fn bury(&mut self, rank: usize, problem: Loss) -> Error {
        let Links::Hub(peers) = &mut self.links else { return Error::Lost { rank, problem } };
        let child = peers.get_mut(rank.wrapping_sub(1)).and_then(|p| p.child.as_mut());
        let problem = match (problem, child) {
            (Loss::Ended(None), Some(child)) => Loss::Ended(ending(child, BURIAL)),
            (problem, _) => problem,
        };
        self.end();
        Error::Lost { rank, problem }
    }

    /// Of rank 0: ends all others. One that its device's driver keeps is waited for no longer than others.
    fn end(&mut self) {
        let Links::Hub(peers) = &mut self.links else { return };
        let mut children: Vec<&mut Child> =
            peers.iter_mut().filter_map(|p| p.child.as_mut()).collect();
        for child in &mut children {
            let _ = child.kill();
        }
        for child in children {
            ending(child, KILLED);
        }
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        self.end();
    }
}

fn milliseconds(time: Duration) -> i32 {
    time.as_millis().min(i32::MAX as u128) as i32
}

/// How it has ended, if it does within `time`.
fn ending(child: &mut Child, time: Duration) -> Option<String> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(match status.signal() {
                Some(signal) => format!("signal {signal}"),
                None => status.to_string(),
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
