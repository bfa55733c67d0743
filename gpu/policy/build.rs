//! Links libtorch so that the binary finds it at run time and CUDA registers itself.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=DEP_TCH_LIBTORCH_LIB");
    let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") else {
        println!("cargo:warning=libtorch's folder is unknown; set LD_LIBRARY_PATH to run");
        return;
    };
    println!("cargo:rustc-link-search=native={lib}");
    // RUNPATH, not RPATH: LD_LIBRARY_PATH must win on a machine whose torch lies elsewhere.
    println!("cargo:rustc-link-arg=-Wl,--enable-new-dtags,-rpath,{lib}");
    // Nothing names a symbol of torch_cuda, so the linker would drop it, and CUDA with it.
    println!("cargo:rustc-link-arg=-Wl,--no-as-needed");
    for name in ["torch_cuda", "torch", "torch_cpu", "c10"] {
        if Path::new(&lib).join(format!("lib{name}.so")).is_file() {
            println!("cargo:rustc-link-arg=-l{name}");
        }
    }
    println!("cargo:rustc-link-arg=-Wl,--as-needed");
}
