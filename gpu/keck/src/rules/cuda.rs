//! The static rules for the C++ and CUDA text of a candidate.

use events::outcome::{Failure, FailureKind};

use super::cpp::{Token, tokens};
use super::cuda_tables::*;
use super::tables::listed;

/// The first rule that an extension's sources break.
pub fn inspect<'a>(sources: impl Iterator<Item = &'a str>) -> Option<Failure> {
    let found: Vec<Vec<Token>> = sources.map(tokens).collect();
    let whole: Vec<Token> = found.concat();
    let broken = found.iter().find_map(|t| check(t)).or_else(|| check_launches(&whole));
    broken.map(|evidence| Failure::new(FailureKind::Impure, evidence))
}

/// The same for the string literals of a file, of which some are no C++ and some only parts.
pub fn inspect_literals(texts: &[String]) -> Option<String> {
    let code: Vec<Vec<Token>> = texts
        .iter()
        .filter(|t| t.contains('\n') || t.contains("__global__") || t.contains("::"))
        .map(|t| tokens(t))
        .collect();
    let whole = code.concat();
    code.iter().find_map(|t| check(t)).or_else(|| check_launches(&whole))
}

/// Names of the headers that a source includes.
pub fn includes(source: &str) -> Vec<String> {
    let name = |t| if let Token::Include(name) = t { Some(name) } else { None };
    tokens(source).into_iter().filter_map(name).collect()
}

/// Names of the `__global__` functions of a source.
pub fn kernel_names(source: &str) -> Vec<String> {
    let tokens = tokens(source);
    let starts = (0..tokens.len()).filter(|at| is_name(&tokens[*at], "__global__"));
    let name = |start: usize| {
        let rest = tokens.get(start + 1..)?;
        // The name stands before the brackets of the parameters; launch bounds have brackets too.
        rest.windows(2).take(24).find_map(|pair| match pair {
            [Token::Name(name), Token::Mark("(")] if !name.starts_with("__") => Some(name.clone()),
            _ => None,
        })
    };
    starts.filter_map(name).collect()
}

/// A kernel must be defined in live code and launched.
fn check_launches(tokens: &[Token]) -> Option<String> {
    let defines = tokens.iter().any(|t| is_name(t, "__global__"));
    let launches = tokens.iter().any(|t| {
        matches!(t, Token::Mark("<<<"))
            || is_name(t, "cudaLaunchKernel")
            || is_name(t, "cudaLaunchKernelEx")
            || is_name(t, "cudaLaunchCooperativeKernel")
    });
    match (defines, launches) {
        (false, _) => Some("no-kernel: no __global__ function outside of comments".to_owned()),
        (_, false) => Some("never-launched: no kernel launch in the C++ source".to_owned()),
        _ => None,
    }
}

fn check(tokens: &[Token]) -> Option<String> {
    (0..tokens.len()).find_map(|at| check_at(&tokens[at..], at.checked_sub(1).map(|p| &tokens[p])))
}

/// Judges the token at the start of `rest`.
fn check_at(rest: &[Token], before: Option<&Token>) -> Option<String> {
    match &rest[0] {
        Token::Include(name) => check_include(name),
        Token::Mark("##") => Some("token-paste: names must be written out".to_owned()),
        Token::Name(name) => {
            let member = matches!(before, Some(Token::Mark("." | "->")));
            let called = matches!(rest.get(1), Some(Token::Mark("(" | "<")));
            if member {
                let refused = called && listed(METHODS_REFUSED, name);
                return refused.then(|| format!("tensor-method: .{name}("));
            }
            check_name(name, rest, before)
        }
        _ => None,
    }
}

fn check_include(name: &str) -> Option<String> {
    let dispatch = name.contains("_dispatch") || name.contains("Dispatcher");
    let listed = INCLUDES
        .split_whitespace()
        .chain(MORE_INCLUDES.split_whitespace())
        .any(|start| name.starts_with(start));
    (!listed || dispatch || name.contains("..")).then(|| format!("include: {name}"))
}

fn check_name(name: &str, rest: &[Token], before: Option<&Token>) -> Option<String> {
    let scoped = matches!(before, Some(Token::Mark("::")));
    if STARTS_REFUSED.split_whitespace().any(|start| name.starts_with(start))
        || listed(NAMES_REFUSED, name)
    {
        return Some(format!("refused-name: {name}"));
    }
    let next_is = |mark: &str| matches!(rest.get(1), Some(Token::Mark(m)) if *m == mark);
    if name == "namespace" {
        return check_namespace(rest, before);
    }
    if !next_is("::") {
        return None;
    }
    let Some(Token::Name(member)) = rest.get(2) else { return None };
    match name {
        "at" | "torch" | "c10" => {
            if member == "kCPU" {
                return Some("host-copy: work belongs to the device".to_owned());
            }
            let constant = member.starts_with('k')
                && member.len() > 1
                && member[1..].starts_with(|c: char| c.is_ascii_uppercase());
            let listed = listed(TORCH_ALLOWED, member);
            (!constant && !listed).then(|| format!("torch-call: {name}::{member}"))
        }
        "cuda" if scoped => {
            let listed = listed(CUDA_ALLOWED, member) || member.starts_with("CUDA_KERNEL");
            // `cuda::` alone is libcu++.
            (!listed).then(|| format!("torch-call: cuda::{member}"))
        }
        "cub" => member.starts_with("Device").then(|| format!("library: cub::{member}")),
        "py" | "pybind11" => {
            let plain = ["arg", "object", "dict", "list", "tuple", "none", "class_", "init"];
            (!plain.contains(&member.as_str())).then(|| format!("python-call: {name}::{member}"))
        }
        _ => None,
    }
}

/// Second names for torch's namespaces would hide what is called.
fn check_namespace(rest: &[Token], before: Option<&Token>) -> Option<String> {
    let used = matches!(before, Some(Token::Name(n)) if n == "using");
    let alias = matches!(rest.get(2), Some(Token::Mark("=")));
    let target = if alias { rest.get(3) } else { rest.get(1) };
    let Some(Token::Name(target)) = target else { return None };
    let hidden = ["at", "torch", "c10", "thrust", "pybind11"].contains(&target.as_str());
    (hidden && (alias || used)).then(|| format!("namespace-alias: {target}"))
}

fn is_name(token: &Token, wanted: &str) -> bool {
    matches!(token, Token::Name(name) if name == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> Option<String> {
        let kernel = "__global__ void k(float* x) { x[0] = 1.f; } void h() { k<<<1, 1>>>(0); }\n";
        let text = format!("{kernel}{text}");
        inspect([text.as_str()].into_iter()).map(|f| f.detail)
    }

    #[test]
    fn names_of_kernels() {
        let text = "__global__ void a(int) {}\n__global__ __launch_bounds__(256) void b(int) {}\ntemplate <int N> __global__ static void c(float*) {}";
        assert_eq!(kernel_names(text), ["a", "b", "c"]);
    }

    #[test]
    fn plumbing_passes() {
        assert_eq!(
            broken("auto s = at::cuda::getCurrentCUDAStream(); auto o = at::empty_like(a);"),
            None
        );
        assert_eq!(broken("#include <torch/extension.h>\nauto t = torch::kFloat32;"), None);
        assert_eq!(broken("using R = cub::BlockReduce<float, 128>; a = R(tmp).Sum(a);"), None);
    }

    #[test]
    fn work_by_others_is_named() {
        for text in [
            "auto y = at::relu(x);",
            "auto y = x.softmax(-1);",
            "cub::DeviceReduce::Sum(a, b);",
            "#define OP at::mm",
            "#include \"/etc/passwd\"",
            "namespace q = at;",
            "std::thread([] {}).detach();",
        ] {
            assert!(broken(text).is_some(), "{text}");
        }
    }
}
