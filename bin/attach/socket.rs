//! The daemon's side of the socket: a thread that takes what an actor writes and one that sends it
//! events, for each connection. Neither holds anything that the run waits for.

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actors::attached::{
    Bell, DAEMON_ENDS, Feed, Gate, Hello, LINE_MAX, Reply, Session, read_line, welcome,
};
use anyhow::{Context, Result};
use events::ids::{RunId, Seq};
use serde_json::Value;

use super::place;

/// Actors that are attached at the same time; operators' commands have places of their own.
const MOST: usize = 32;
/// Connections at the same time, those included that have not said yet who they are.
const CONNECTIONS: usize = MOST + 96;
/// How long one may take to say who it is, and how long a line to it may take. A reader that is slower
/// can come back and go on where it was.
const HELLO: Duration = Duration::from_secs(10);
const STALLED: Duration = Duration::from_secs(600);
/// How long the end of the daemon waits for readers to take what is left.
const LAST: Duration = Duration::from_secs(5);

/// The open socket of a run.
pub struct Doors {
    run_dir: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    gate: Arc<Gate>,
    run: RunId,
    /// What an operator's command says in its hello.
    key: String,
    bell: Arc<Bell>,
    /// Nobody new is let in, and who has seen everything goes.
    closing: AtomicBool,
    connections: AtomicUsize,
    /// Those of them that are no operators.
    visitors: AtomicUsize,
    /// Streams of open connections, to end them.
    streams: Mutex<Vec<(usize, UnixStream)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Doors {
    /// Opens the socket in the folder of `run`.
    pub fn open(run_dir: &Path, run: RunId, gate: Arc<Gate>) -> Result<Self> {
        let making = || format!("making the socket in {}", run_dir.display());
        let key = place::make_key(run_dir).with_context(making)?;
        let listener = place::listen(run_dir).with_context(making)?;
        let shared = Arc::new(Shared {
            bell: Bell::of(gate.bus()),
            gate,
            run,
            key,
            closing: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            visitors: AtomicUsize::new(0),
            streams: Mutex::default(),
        });
        let inside = shared.clone();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                match stream {
                    _ if inside.closing.load(Ordering::SeqCst) => break,
                    Ok(stream) => inside.clone().accept(number, stream),
                    Err(error) => {
                        tracing::warn!(%error, "a connection to the socket failed");
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        });
        Ok(Self { run_dir: run_dir.to_owned(), shared })
    }

    /// Lets readers take what is left, for a few seconds, and ends all connections.
    pub fn close(self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Whoever waits for connections sees that it is over.
        drop(place::connect(&self.run_dir));
        self.shared.bell.ring();
        self.wait(LAST);
        for (_, stream) in lock(&self.shared.streams).iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.wait(Duration::from_secs(1));
    }

    fn wait(&self, limit: Duration) {
        let end = Instant::now() + limit;
        while self.shared.connections.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Doors {
    /// Also where the daemon could not start: nobody is to wait at a door that nobody opens.
    fn drop(&mut self) {
        place::remove(&self.run_dir);
    }
}

impl Shared {
    fn accept(self: Arc<Self>, number: usize, stream: UnixStream) {
        if self.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS {
            self.connections.fetch_sub(1, Ordering::SeqCst);
            let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
            let _ = (&stream).write_all(end("too many connections: try again").as_bytes());
            return;
        }
        if let Ok(copy) = stream.try_clone() {
            lock(&self.streams).push((number, copy));
        }
        let inside = self.clone();
        // A machine that has no thread left must not end the daemon.
        let started = std::thread::Builder::new().name("attached".to_owned()).spawn(move || {
            if let Err(error) = inside.serve(&stream) {
                tracing::debug!(%error, "an attached actor is gone");
            }
            let _ = stream.shutdown(Shutdown::Both);
            inside.forget(number);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "an actor is not let in");
            self.forget(number);
        }
    }

    /// A connection is over.
    fn forget(&self, number: usize) {
        lock(&self.streams).retain(|(other, _)| *other != number);
        self.connections.fetch_sub(1, Ordering::SeqCst);
    }

    fn serve(self: &Arc<Self>, stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(HELLO))?;
        stream.set_write_timeout(Some(STALLED))?;
        let mut lines = BufReader::new(stream.try_clone()?);
        let writer = Arc::new(Mutex::new(stream.try_clone()?));
        let last = self.gate.bus().log().head().0;
        let away = (writer.clone(), stream.try_clone()?);
        let entered = hello(&mut lines).and_then(|hello| {
            let place = Place::of(self.clone(), &hello)?;
            Ok((self.gate.attach(&hello)?, hello, place))
        });
        let (mut session, hello, _place) = match entered {
            Ok(entered) => entered,
            Err(why) => return lock(&writer).write_all(end(&why).as_bytes()),
        };
        session.on_sent_away(move |why| send_away(&away.0, &away.1, why));
        stream.set_read_timeout(None)?;
        let name = session.name();
        tracing::info!(%name, what = hello.what, "attached");
        let why = match send(&writer, &welcome(self.run, last)) {
            Ok(()) => {
                let left = Arc::new(AtomicBool::new(false));
                let feeder = self.feed(&hello, last, (writer.clone(), left.clone()))?;
                let why = self.listen(&mut session, &mut lines, &writer);
                left.store(true, Ordering::SeqCst);
                let _ = stream.shutdown(Shutdown::Both);
                self.bell.ring();
                let sent = feeder.join().unwrap_or_else(|_| Err("its reader ended".to_owned()));
                why.or_else(|| sent.err()).unwrap_or_else(|| DAEMON_ENDS.to_owned())
            }
            Err(error) => format!("it does not listen: {error}"),
        };
        tracing::info!(%name, why, "detached");
        session.leave(&why);
        Ok(())
    }

    /// Sends the events that were asked for, in a thread of its own, until there is no one to take them
    /// or the daemon ends and all is sent. The error is what kept it from that.
    fn feed(
        self: &Arc<Self>,
        hello: &Hello,
        last: Seq,
        (writer, left): (Arc<Mutex<UnixStream>>, Arc<AtomicBool>),
    ) -> io::Result<JoinHandle<Result<(), String>>> {
        let mut feed = Feed::new(hello.after, hello.filter.clone());
        let shared = self.clone();
        std::thread::Builder::new().name("feed".to_owned()).spawn(move || {
            let gone = |error: io::Error| format!("it does not read: {error}");
            let mut catching_up = true;
            while !left.load(Ordering::SeqCst) {
                let rung = shared.bell.count();
                let closing = shared.closing.load(Ordering::SeqCst);
                let read = feed.next(shared.gate.bus().log()).map_err(|e| e.to_string())?;
                let dry = read.is_none();
                for recorded in read.into_iter().flatten() {
                    send(&writer, &Reply::Event(Box::new(recorded))).map_err(gone)?;
                }
                if catching_up && (dry || feed.after() >= last) {
                    catching_up = false;
                    send(&writer, &Reply::CaughtUp(last)).map_err(gone)?;
                }
                if !dry {
                    continue;
                }
                if closing {
                    let stream = lock(&writer);
                    let _ = (&*stream).write_all(end(DAEMON_ENDS).as_bytes());
                    // Whoever waits for a line of the actor is not waited for any more.
                    let _ = stream.shutdown(Shutdown::Read);
                    return Ok(());
                }
                shared.bell.wait(rung);
            }
            Ok(())
        })
    }

    /// Takes lines until there are no more; says why it ended, if it was the actor's doing.
    fn listen(
        &self,
        session: &mut Session,
        lines: &mut BufReader<UnixStream>,
        writer: &Mutex<UnixStream>,
    ) -> Option<String> {
        loop {
            let text = match read_line(lines, LINE_MAX) {
                // What was sent and not taken when the daemon ends is not taken any more.
                Ok(_) if self.closing.load(Ordering::SeqCst) => return None,
                Ok(Some(text)) => text,
                Ok(None) => return Some("it left".to_owned()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    let _ = lock(writer).write_all(end(&error.to_string()).as_bytes());
                    return Some(error.to_string());
                }
                Err(error) => return Some(format!("its connection failed: {error}")),
            };
            if text.trim().is_empty() {
                continue;
            }
            let answer = match session.line(&text) {
                Ok(answer) => answer,
                Err(error) => return Some(format!("the daemon failed: {error}")),
            };
            if let Err(error) = send(writer, &Reply::Answer(answer)) {
                return Some(format!("it does not read: {error}"));
            }
            if session.is_lost() {
                let why = "too much in a row was refused";
                let _ = lock(writer).write_all(end(why).as_bytes());
                return Some(why.to_owned());
            }
        }
    }
}

/// One of the places for actors that are no operators.
struct Place(Option<Arc<Shared>>);

impl Place {
    fn of(shared: Arc<Shared>, hello: &Hello) -> Result<Self, String> {
        if hello.name.is_operator() {
            let known = hello.key.as_ref() == Some(&shared.key);
            let why = format!("{}: such names are those of kernelzero's own commands", hello.name);
            return if known { Ok(Self(None)) } else { Err(why) };
        }
        let taken = shared.visitors.fetch_add(1, Ordering::SeqCst);
        let place = Self(Some(shared));
        if taken < MOST {
            return Ok(place);
        }
        Err(format!("{MOST} actors are attached: `kernelzero detach RUN NAME` ends one"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.visitors.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Ends a connection. Whoever is in the middle of writing to it is not waited for: then its actor reads
/// nothing, and so no reason either.
fn send_away(writer: &Mutex<UnixStream>, stream: &UnixStream, why: &str) {
    if let Ok(mut writer) = writer.try_lock() {
        let _ = writer.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = writer.write_all(end(why).as_bytes());
    }
    let _ = stream.shutdown(Shutdown::Both);
}

/// Reads the first line of whoever connects. The error says what is wrong with it.
pub fn hello(lines: &mut impl BufRead) -> Result<Hello, String> {
    let form = "the first line must be {\"hello\": {\"protocol\": 1, \"name\": \"my-actor\"}}";
    let wrong = |what: String| format!("{form}: {what}");
    let text = read_line(lines, LINE_MAX).map_err(|e| wrong(e.to_string()))?;
    let text = text.ok_or_else(|| wrong("there is none".to_owned()))?;
    let mut value: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let hello = value.get_mut("hello").map(Value::take).unwrap_or_default();
    serde_json::from_value(hello).map_err(|e| wrong(e.to_string()))
}

fn send(writer: &Mutex<UnixStream>, reply: &Reply) -> io::Result<()> {
    lock(writer).write_all(reply.to_line().as_bytes())
}

fn end(why: &str) -> String {
    Reply::End { why: why.to_owned() }.to_line()
}
