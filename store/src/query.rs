//! Questions to a log beyond its order. An owner asks the index; a reader looks through the log,
//! since sled lets only one process in.

use std::ops::ControlFlow;
use std::sync::PoisonError;

use events::event::Recorded;
use events::ids::Seq;
use events::log::LogError;
use uuid::Uuid;

use crate::error::{io, refused};
use crate::file_log::{FileLog, OpenMode};
use crate::index::{Index, IndexError, Place};
use crate::lineage::{View, walk};

impl FileLog {
    /// Events about the set, module, kernel, group or run with this id, in order.
    pub fn by_subject(&self, subject: Uuid) -> Result<Vec<Seq>, LogError> {
        self.seqs(&|index| index.by_subject(subject), &|r| r.event.subject() == Some(subject))
    }

    /// Events of the variant with this name, in order.
    pub fn by_name(&self, name: &str) -> Result<Vec<Seq>, LogError> {
        self.seqs(&|index| index.by_name(name), &|r| r.event.name() == name)
    }

    /// Events that `cause` made necessary, in order.
    pub fn by_cause(&self, cause: Seq) -> Result<Vec<Seq>, LogError> {
        self.seqs(&|index| index.by_cause(cause), &|r| r.cause == Some(cause))
    }

    /// Where the event at `seq` lies, if there is one.
    pub fn offset_of(&self, seq: Seq) -> Result<Option<Place>, LogError> {
        let views = self.views()?;
        if let Some(Some((first, offset))) = self.ask(&views, &|index| index.place(seq))? {
            let segments = views.iter().filter(|v| v.last >= seq.0).flat_map(|v| v.segments.iter());
            let segment = segments.into_iter().find(|s| s.header.first == first);
            return Ok(segment.map(|s| Place { path: s.path.clone(), offset }));
        }
        let mut place = None;
        walk(&views, seq.0.max(1), &mut |item| {
            if item.record.seq == seq {
                place = Some(Place { path: item.segment.path.clone(), offset: item.offset });
            }
            ControlFlow::Break(())
        })?;
        Ok(place)
    }

    /// Brings the index up to date, so that the next question is answered at once. Does nothing for
    /// a reader. Questions are answered from the log itself where this fails.
    pub fn index_now(&self) -> Result<(), LogError> {
        match self.try_ask(&self.views()?, &|_| Ok(())) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(IndexError::Log(error))) => Err(error),
            Some(Err(IndexError::Index(why))) => {
                Err(io("cannot index", &self.dir)(std::io::Error::other(why)))
            }
        }
    }

    /// Throws the index away and makes it anew from the segments. Refused to a reader.
    pub fn rebuild_index(&self) -> Result<(), LogError> {
        if self.mode == OpenMode::ReadOnly {
            return Err(refused("cannot index", &self.dir, "it is open for reading only"));
        }
        let dir = self.dir.join("index");
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        index.discard(&dir).map_err(io("cannot remove", &dir))?;
        drop(index);
        self.index_now()
    }

    fn seqs(
        &self,
        question: &dyn Fn(&Index) -> Result<Vec<Seq>, IndexError>,
        matches: &dyn Fn(&Recorded) -> bool,
    ) -> Result<Vec<Seq>, LogError> {
        let views = self.views()?;
        if let Some(seqs) = self.ask(&views, question)? {
            return Ok(seqs);
        }
        let mut seqs = Vec::new();
        walk(&views, 1, &mut |item| {
            if matches(&item.record) {
                seqs.push(item.record.seq);
            }
            ControlFlow::Continue(())
        })?;
        Ok(seqs)
    }

    /// `None` if there is no index to ask: the log still has the answer.
    fn ask<T>(
        &self,
        views: &[View],
        question: &dyn Fn(&Index) -> Result<T, IndexError>,
    ) -> Result<Option<T>, LogError> {
        match self.try_ask(views, question) {
            Some(Ok(answer)) => Ok(Some(answer)),
            None | Some(Err(IndexError::Index(_))) => Ok(None),
            Some(Err(IndexError::Log(error))) => Err(error),
        }
    }

    fn try_ask<T>(
        &self,
        views: &[View],
        question: &dyn Fn(&Index) -> Result<T, IndexError>,
    ) -> Option<Result<T, IndexError>> {
        if self.mode == OpenMode::ReadOnly {
            return None;
        }
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        Some(index.ask(&self.dir.join("index"), views, question))
    }
}
