//! Building CUDA candidates: their sources are collected in a worker, compiled with the judge's
//! own command lines in another, and kept as files by content.

use std::fs;
use std::path::{Path, PathBuf};

use events::outcome::{Backend, Failure, FailureKind};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answer::{Stop, heard};
use crate::cache::Weigh;
use crate::compilers::{needs_full, tool};
use crate::error::Error;
use crate::fault;
use crate::headers::{self, Headers, HeadersPolicy};
use crate::judge::{Judge, lock};
use crate::rules;
use crate::toolchain::Toolchain;
use crate::wire::Handed;

/// Extensions one candidate may define.
const EXTENSIONS_MAX: usize = 4;
/// Source text of one candidate's extensions, in bytes.
const SOURCE_MAX: usize = 256 * 1024;

/// Flags are dropped anyway; those that would run a command in a shell are no mistake.
const SHELL: [char; 8] = ['`', '$', ';', '|', '&', '<', '>', '\n'];

/// A kernel to build.
#[derive(Clone, Debug)]
pub struct BuildJob {
    /// The candidate's source.
    pub source: String,
    /// Its language.
    pub backend: Backend,
}

/// What a build came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Build {
    /// Nothing to build: Triton compiles at the first launch.
    Ready,
    /// Compiled and linked.
    Cuda {
        /// Folder with the shared objects and their list.
        artifact: PathBuf,
        /// Torch's headers if any extension needed them.
        headers: Headers,
    },
    /// The candidate's own fault.
    Rejected(Failure),
}

impl Build {
    /// What a CUDA candidate was compiled with.
    pub fn headers(&self) -> Option<Headers> {
        match self {
            Build::Cuda { headers, .. } => Some(*headers),
            Build::Ready | Build::Rejected(_) => None,
        }
    }
}

/// One extension as the candidate asked for it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Extension {
    pub cpp: Vec<String>,
    pub cuda: Vec<String>,
    pub functions: Vec<String>,
    pub flags: Vec<String>,
    pub key: String,
}

/// A shared object ready to be handed to a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Artifact {
    pub key: String,
    pub name: String,
    pub file: String,
    pub kernels: Vec<String>,
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// A cached result.
#[derive(Debug)]
pub(crate) struct Compiled(pub Build);

impl Weigh for Compiled {
    fn bytes(&self) -> usize {
        // The files stay in the private folder; only the list is in memory.
        4096
    }
}

impl Judge {
    /// Builds a candidate. Triton has nothing to build; CUDA is compiled with nvcc: in seconds where
    /// the judge's own headers serve, else with torch's, which take a minute or more.
    pub fn build(&self, job: &BuildJob) -> Result<Build, Error> {
        if job.backend == Backend::Triton {
            return Ok(Build::Ready);
        }
        let toolchain = Toolchain::find(&self.config.python)?;
        let policy = self.config.headers;
        let setting = format!("{}/{policy:?}/{}", toolchain.identity(), self.device.arch());
        let identity = format!("{setting}/{}", job.source);
        let key = blake3::hash(identity.as_bytes());
        if let Some(found) = lock(&self.builds).get(&key) {
            return Ok(found.0.clone());
        }
        let _slot = self.slot();
        let folder = self.scratch.path().join(format!("build-{}", key.to_hex()));
        let build = match self.build_cuda(job, &toolchain, &folder) {
            Ok(headers) => Build::Cuda { artifact: folder, headers },
            Err(Stop::Candidate(failure)) => Build::Rejected(failure),
            Err(Stop::World(error)) => return Err(error),
        };
        lock(&self.builds).put(key, std::sync::Arc::new(Compiled(build.clone())));
        Ok(build)
    }

    fn build_cuda(
        &self,
        job: &BuildJob,
        tools: &Toolchain,
        folder: &Path,
    ) -> Result<Headers, Stop> {
        let extensions = self.collect(&job.source)?;
        fs::create_dir_all(folder).map_err(Error::system("making a build folder"))?;
        let mut artifacts = Vec::new();
        let mut used = Headers::Fast;
        for (index, extension) in extensions.iter().enumerate() {
            if let Some(flag) = extension.flags.iter().find(|f| f.contains(SHELL)) {
                let detail = format!("compiler-flags: {}", fault::scrub(flag));
                return Err(Stop::Candidate(Failure::new(FailureKind::Impure, detail)));
            }
            let text = extension.cpp.iter().chain(&extension.cuda);
            if let Some(failure) = rules::inspect_cuda(text.map(String::as_str)) {
                return Err(Stop::Candidate(failure));
            }
            let (artifact, headers) = self.compile(extension, index, tools)?;
            used = used.max(headers);
            fs::write(folder.join(&artifact.file), &artifact.bytes)
                .map_err(Error::system("writing a shared object"))?;
            artifacts.push(artifact);
        }
        let list = serde_json::to_vec(&artifacts).map_err(|e| Error::Bug(e.to_string()))?;
        fs::write(folder.join("artifacts.json"), list)
            .map_err(Error::system("writing a build's list"))?;
        Ok(used)
    }

    /// Runs the candidate's file only to see what it hands to `load_inline`. Hardly any needs the
    /// device for that, and opening it takes longer than all the rest.
    fn collect(&self, source: &str) -> Result<Vec<Extension>, Stop> {
        match self.collect_in("sources", source) {
            Err(Stop::Candidate(_)) if self.device.kind() != "cpu" => {
                self.collect_in("kernel", source)
            }
            other => other,
        }
    }

    fn collect_in(&self, role: &str, source: &str) -> Result<Vec<Extension>, Stop> {
        let reject = |text: &str| Stop::Candidate(Failure::new(FailureKind::CompileError, text));
        let mut session = self.worker(role)?;
        let blobs = [("source", Handed::Bytes(source.as_bytes()))];
        let question = json!({ "do": "sources" });
        let mut reply =
            heard(self.ask(&mut session, question, &blobs, self.config.import_timeout)?)?;
        let list = reply.take("extensions").unwrap_or_default();
        let extensions: Vec<Extension> =
            serde_json::from_slice(&list).map_err(|_| reject("load_inline got no plain text"))?;
        if extensions.is_empty() {
            return Err(reject("no CUDA source was handed to load_inline"));
        }
        let total: usize =
            extensions.iter().flat_map(|e| e.cpp.iter().chain(&e.cuda)).map(String::len).sum();
        if extensions.len() > EXTENSIONS_MAX || total > SOURCE_MAX {
            return Err(reject("more extensions or more source than a candidate may have"));
        }
        Ok(extensions)
    }

    /// With the judge's own headers if they serve, else with torch's. Only what torch's headers
    /// refuse as well is the candidate's fault.
    fn compile(
        &self,
        extension: &Extension,
        index: usize,
        tools: &Toolchain,
    ) -> Result<(Artifact, Headers), Stop> {
        let auto = self.config.headers == HeadersPolicy::Auto;
        if auto && tools.serves(extension, self.device.arch()) {
            match self.compile_with(extension, index, tools, Headers::Fast) {
                Err(Stop::Candidate(failure)) if needs_full(&failure, extension, tools) => {
                    tracing::debug!(detail = failure.detail, "the fast headers do not serve");
                }
                Err(stop) => return Err(stop),
                Ok(artifact) => return Ok((artifact, Headers::Fast)),
            }
        }
        let artifact = self.compile_with(extension, index, tools, Headers::Full)?;
        Ok((artifact, Headers::Full))
    }

    fn compile_with(
        &self,
        extension: &Extension,
        index: usize,
        tools: &Toolchain,
        headers: Headers,
    ) -> Result<Artifact, Stop> {
        let name = format!("keck_extension_{index}");
        let file = format!("{name}.so");
        let plan = tools.plan(extension, &name, self.device.arch(), headers);
        let mut session = self.worker("tools")?;
        let files: Vec<_> =
            plan.files.iter().map(|(n, text)| (*n, Handed::Bytes(text.as_bytes()))).collect();
        let short = self.config.import_timeout;
        tool(self.ask(&mut session, json!({ "do": "write" }), &files, short)?)?;
        if headers == Headers::Fast {
            let question = json!({ "do": "unpack", "folder": headers::FOLDER });
            let packed = headers::packed();
            let files = [("files", Handed::Bytes(&packed))];
            tool(self.ask(&mut session, question, &files, short)?)?;
        }
        let limit = match headers {
            Headers::Fast => self.config.fast_build_timeout,
            Headers::Full => self.config.build_timeout,
        };
        for commands in [&plan.compile, &plan.link] {
            self.run_compilers(&mut session, commands, limit)?;
        }
        let question = json!({ "do": "fetch", "file": file });
        let mut reply = tool(self.ask(&mut session, question, &[], short)?)?;
        let bytes = reply.take("file").unwrap_or_default().to_vec();
        let kernels = extension.cuda.iter().flat_map(|text| rules::kernel_names(text)).collect();
        Ok(Artifact { key: extension.key.clone(), name, file, kernels, bytes })
    }
}

/// The shared objects of a build.
pub(crate) fn artifacts(build: &Build) -> Result<Vec<Artifact>, Error> {
    let Build::Cuda { artifact, .. } = build else { return Ok(Vec::new()) };
    let list = fs::read(artifact.join("artifacts.json"))
        .map_err(Error::system("reading a build's list"))?;
    let mut artifacts: Vec<Artifact> =
        serde_json::from_slice(&list).map_err(|e| Error::Bug(e.to_string()))?;
    for entry in &mut artifacts {
        entry.bytes = fs::read(artifact.join(&entry.file))
            .map_err(Error::system("reading a shared object"))?;
    }
    Ok(artifacts)
}
