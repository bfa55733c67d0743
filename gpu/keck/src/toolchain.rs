//! The compilers beside torch, and the command lines that candidates cannot influence.

use std::path::{Path, PathBuf};

use crate::compile::Extension;
use crate::error::Error;
use crate::headers::{self, Headers};

/// Where nvcc, torch's headers and Python's headers are.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain {
    nvcc: PathBuf,
    cuda: PathBuf,
    torch: PathBuf,
    python_include: PathBuf,
    known_torch: bool,
    /// Whether the linker that reads torch's large libraries in a third of the time is there.
    gold: bool,
}

/// Files and commands of one build.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Files to write, by name.
    pub files: Vec<(&'static str, String)>,
    /// Commands that run at the same time.
    pub compile: Vec<Vec<String>>,
    /// The link command.
    pub link: Vec<Vec<String>>,
}

impl Toolchain {
    /// Looks through the packages of the Python's environment.
    pub fn find(python: &Path) -> Result<Self, Error> {
        let missing = |what: &str| Error::ToolchainMissing(what.to_owned());
        let prefix = python.parent().and_then(Path::parent).ok_or_else(|| missing("no prefix"))?;
        let packages = site_packages(prefix).ok_or_else(|| missing("no site-packages"))?;
        let nvcc = find_nvcc(&packages.join("nvidia"))
            .or_else(system_nvcc)
            .ok_or_else(|| missing("no bin/nvcc"))?;
        let cuda = nvcc.parent().and_then(Path::parent).ok_or_else(|| missing("no CUDA root"))?;
        let torch = packages.join("torch");
        let python_include = python_headers(python).ok_or_else(|| missing("no Python.h"))?;
        if !torch.join("include/torch/csrc/api/include/torch").is_dir() {
            return Err(missing("no torch headers"));
        }
        let known_torch = torch_version(&torch) == Some(headers::TORCH);
        let gold =
            ["/usr/local/bin", "/usr/bin"].iter().any(|f| Path::new(f).join("ld.gold").exists());
        let cuda = cuda.to_owned();
        Ok(Self { cuda, torch, nvcc, python_include, known_torch, gold })
    }

    /// What results depend on beside the source.
    pub fn identity(&self) -> String {
        let headers = headers::identity();
        format!("{}|{}|{headers}|flags-3", self.nvcc.display(), self.torch.display())
    }

    /// Whether an extension may be tried with our own headers.
    pub fn serves(&self, extension: &Extension, arch: &str) -> bool {
        // Before 8.0 torch rounds to bfloat16 in another way.
        let recent = arch.trim_end_matches('a').parse().is_ok_and(|number: u32| number >= 80);
        self.known_torch && recent && headers::serve(extension)
    }

    /// Version of the CUDA toolkit, read from its header.
    pub fn version(&self) -> String {
        cuda_version(&self.cuda)
    }

    /// Where nvcc is.
    pub fn nvcc(&self) -> &Path {
        &self.nvcc
    }

    /// Where all headers are that a compiler may find.
    pub fn header_folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.torch.join("include"), self.cuda.join("include")];
        folders.extend([self.python_include.clone(), "/usr/include".into()]);
        let gcc = std::fs::read_dir("/usr/lib/gcc").into_iter().flatten().flatten();
        folders.extend(gcc.map(|entry| entry.path()));
        folders
    }

    /// The files and commands that build one extension.
    pub fn plan(&self, extension: &Extension, name: &str, arch: &str, headers: Headers) -> Plan {
        let common = self.common(name, headers);
        let mut gxx = vec!["g++".to_owned(), "-O1".into(), "-fPIC".into(), "-w".into()];
        gxx.extend(common.clone());
        gxx.extend(["-c", "main.cpp", "-o", "main.o"].map(str::to_owned));
        let mut nvcc = vec![
            self.nvcc.display().to_string(),
            // Of the host's code; kernels are optimised in any case.
            "-O1".into(),
            "-w".into(),
            "--expt-relaxed-constexpr".into(),
            "--expt-extended-lambda".into(),
            format!("-gencode=arch=compute_{arch},code=sm_{arch}"),
            "-Xcompiler".into(),
            "-fPIC".into(),
        ];
        nvcc.extend(common);
        if headers == Headers::Fast {
            // Types of ours carry torch's names: no library may take one for the other.
            gxx.push("-fvisibility=hidden".to_owned());
            nvcc.extend(["-Xcompiler", "-fvisibility=hidden"].map(str::to_owned));
            for part in headers::parts(extension) {
                gxx.push(part.to_owned());
                nvcc.push(part.to_owned());
            }
        }
        nvcc.extend(["-c", "cuda.cu", "-o", "cuda.o"].map(str::to_owned));
        Plan {
            files: vec![("main.cpp", binding(extension)), ("cuda.cu", device_code(extension))],
            compile: vec![gxx, nvcc],
            link: vec![self.link(name)],
        }
    }

    /// Our headers never mix with torch's, which are then not on the path at all.
    fn common(&self, name: &str, headers: Headers) -> Vec<String> {
        let include = |path: PathBuf| format!("-I{}", path.display());
        let mut options = vec![
            "-std=c++17".into(),
            format!("-DTORCH_EXTENSION_NAME={name}"),
            "-DTORCH_API_INCLUDE_EXTENSION_H".into(),
        ];
        options.extend(match headers {
            Headers::Fast => vec![include(headers::FOLDER.into())],
            Headers::Full => vec![
                include(self.torch.join("include")),
                include(self.torch.join("include/torch/csrc/api/include")),
            ],
        });
        options.push(include(self.cuda.join("include")));
        options.push(include(self.python_include.clone()));
        options
    }

    /// `lib64` in a toolkit of the machine, `lib` in one from PyPI.
    fn cuda_libraries(&self) -> PathBuf {
        let wide = self.cuda.join("lib64");
        if wide.is_dir() { wide } else { self.cuda.join("lib") }
    }

    fn link(&self, name: &str) -> Vec<String> {
        let mut command: Vec<String> =
            ["g++", "-shared", "main.o", "cuda.o", "-o"].map(str::to_owned).into();
        command.push(format!("{name}.so"));
        if self.gold {
            command.push("-fuse-ld=gold".to_owned());
        }
        for folder in [self.torch.join("lib"), self.cuda_libraries()] {
            command.push(format!("-L{}", folder.display()));
            command.push(format!("-Wl,-rpath,{}", folder.display()));
        }
        for library in ["torch", "torch_cpu", "torch_cuda", "torch_python", "c10", "c10_cuda"] {
            command.push(format!("-l{library}"));
        }
        command.extend(["-l:libcudart.so.13", "-Wl,--no-as-needed"].map(str::to_owned));
        // Python's symbols stay open; the judge reads the warnings to find the others.
        command.extend(["-Wl,-z,defs", "-Wl,--warn-unresolved-symbols"].map(str::to_owned));
        command.push(format!("-Wl,-rpath-link,{}", self.cuda_libraries().display()));
        command
    }
}

/// The C++ file: the candidate's declarations and a binding of the functions it names.
fn binding(extension: &Extension) -> String {
    let mut text = String::from("#include <torch/extension.h>\n");
    for source in &extension.cpp {
        text.push_str(source);
        text.push('\n');
    }
    if !extension.functions.is_empty() {
        text.push_str("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n");
        for name in extension.functions.iter().filter(|n| is_identifier(n)) {
            text.push_str(&format!("m.def(\"{name}\", torch::wrap_pybind_function({name}));\n"));
        }
        text.push_str("}\n");
    }
    text
}

fn device_code(extension: &Extension) -> String {
    // Our set has the header of the driver's types read only where they are named.
    let mut text = String::from(
        "#include <torch/types.h>\n#if !defined(KECK) || defined(KECK_DRIVER)\n#include <cuda.h>\n\
         #endif\n#include <cuda_runtime.h>\n",
    );
    for source in &extension.cuda {
        text.push_str(source);
        text.push('\n');
    }
    text
}

/// Names go into C++ text, so they must be nothing but names.
fn is_identifier(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// As the toolkit's header says: `13000` is 13.0.
fn cuda_version(cuda: &Path) -> String {
    let text = std::fs::read_to_string(cuda.join("include/cuda.h")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("#define CUDA_VERSION "));
    match line.and_then(|l| l.trim().parse::<u32>().ok()) {
        Some(number) => format!("{}.{}", number / 1000, number % 1000 / 10),
        None => "unknown".to_owned(),
    }
}

/// Major and minor version from the header that torch installs for it.
fn torch_version(torch: &Path) -> Option<(u32, u32)> {
    let text = std::fs::read_to_string(torch.join("include/torch/headeronly/version.h")).ok()?;
    let number = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(&format!("#define {name} ")))?;
        line.trim().parse().ok()
    };
    Some((number("TORCH_VERSION_MAJOR")?, number("TORCH_VERSION_MINOR")?))
}

fn site_packages(prefix: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(prefix.join("lib")).ok()?;
    let folders = entries.flatten().map(|e| e.path().join("site-packages"));
    folders.into_iter().find(|path| path.is_dir())
}

/// `nvidia/*/bin/nvcc`: the folder's name changes with the CUDA version.
fn find_nvcc(nvidia: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(nvidia).ok()?;
    let places = entries.flatten().map(|e| e.path().join("bin/nvcc"));
    places.into_iter().find(|path| path.is_file())
}

/// The machine's own CUDA toolkit, where the environment has none.
fn system_nvcc() -> Option<PathBuf> {
    let named = std::env::var_os("CUDA_HOME").map(PathBuf::from);
    let roots = named.into_iter().chain([PathBuf::from("/usr/local/cuda")]);
    roots.filter_map(|root| std::fs::canonicalize(root.join("bin/nvcc")).ok()).next()
}

/// The headers of the Python that the environment was made from.
fn python_headers(python: &Path) -> Option<PathBuf> {
    let real = std::fs::canonicalize(python).ok()?;
    let include = real.parent()?.parent()?.join("include");
    let entries = std::fs::read_dir(include).ok()?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    found.retain(|path| path.join("Python.h").is_file());
    found.sort();
    found.pop()
}
