//! The static rules for the C++ and CUDA text of a candidate.

use std::collections::BTreeSet;

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

/// All names of a source, each once.
pub fn words(source: &str) -> BTreeSet<String> {
    let name = |t| if let Token::Name(name) = t { Some(name) } else { None };
    tokens(source).into_iter().filter_map(name).collect()
}

/// What a source names of `std`. `min` and `max` of a list in braces are other functions than those
/// of two values: they end in `({`.
pub fn of_std(source: &str) -> BTreeSet<String> {
    let tokens = tokens(source);
    let mut found = BTreeSet::new();
    for (at, window) in tokens.windows(3).enumerate() {
        if let [first, Token::Mark("::"), Token::Name(name)] = window
            && is_name(first, "std")
        {
            let braces = [Token::Mark("("), Token::Mark("{")];
            let listed = tokens.get(at + 3..at + 5) == Some(&braces);
            found.insert(if listed { format!("{name}({{") } else { name.clone() });
        }
    }
    found
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
        Token::Text(text) => check_symbol(text),
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
    if ["asm", "__asm", "__asm__"].contains(&name) {
        return check_asm(rest);
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

/// No string names a function of torch.
fn check_symbol(text: &str) -> Option<String> {
    let found = SYMBOLS_REFUSED.iter().find(|part| text.contains(**part))?;
    Some(format!("symbol-name: {found} in a string"))
}

/// PTX holds no linker names, not even in parts or written as numbers of characters.
fn check_asm(rest: &[Token]) -> Option<String> {
    let inside = rest.iter().skip(1).take_while(|t| !matches!(t, Token::Mark(";" | "{")));
    let text: String = inside
        .filter_map(|t| if let Token::Text(text) = t { Some(text.as_str()) } else { None })
        .collect();
    let mut escapes = text.split('\\').skip(1).map(|part| part.chars().next());
    let odd = escapes.any(|c| c.is_some_and(|c| c.is_ascii_digit() || "xuUN".contains(c)));
    let hidden = odd || text.contains("_Z");
    check_symbol(&text).or_else(|| hidden.then(|| "symbol-name: a linker name in asm".to_owned()))
}

/// Second names for torch's namespaces would hide what is called, and so would code inside them.
fn check_namespace(rest: &[Token], before: Option<&Token>) -> Option<String> {
    let used = matches!(before, Some(Token::Name(n)) if n == "using");
    let alias = matches!(rest.get(2), Some(Token::Mark("=")));
    let target = if alias { rest.get(3) } else { rest.get(1) };
    let Some(Token::Name(target)) = target else { return None };
    let hidden = ["at", "torch", "c10", "thrust", "pybind11"].contains(&target.as_str());
    let kind = if alias || used { "namespace-alias" } else { "namespace-reopened" };
    hidden.then(|| format!("{kind}: {target}"))
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
    fn inline_ptx_passes() {
        let text = "asm volatile(\"{\\n\\t\" \"add.f32 %0, %1, %2;\\n}\" : \"=f\"(d) : \"f\"(a), \"f\"(b));";
        assert_eq!(broken(text), None);
        assert_eq!(broken("namespace { constexpr int n = 4; }\nnamespace mine { int m; }"), None);
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

    #[test]
    fn inner_names_of_torch_and_of_the_judge_are_out_of_reach() {
        for text in [
            "extern \"C\" int aoti_torch_cpu_mm_out(void*, void*, void*);",
            "extern \"C\" int torch_call_dispatcher(const char*, const char*, void*, unsigned long);",
            "#define CALL aoti_torch_zero_",
            "PyObject* THPVariable_Wrap(const at::Tensor&);",
            "auto s = keck::sizes({1});",
            "#define KECK_BINDS",
            "#include \"keck/native.h\"",
            "extern \"C\" PyObject* PyInit_other() { return nullptr; }",
            "at::_ops::zeros::call({}, {}, {}, {}, {});",
            "namespace at { auto f(Tensor x) { return relu(x); } }",
            "namespace torch::native { int x; }",
            "namespace c10 { struct Half; }",
            "at::Tensor mm(at::Tensor) asm(\"_ZN2at2mmE\");",
            "at::Tensor mm(at::Tensor) asm(\"_Z\" \"N2\" \"at2mmE\");",
            "at::Tensor mm(at::Tensor) __asm__(\"\\x5fZN2at2mmE\");",
            "void* p = find(\"aoti_torch_cpu_mm_out\");",
        ] {
            assert!(broken(text).is_some(), "{text}");
        }
    }
}
