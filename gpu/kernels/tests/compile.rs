//! Every kernel compiles for every generation of devices, which needs NVRTC and no GPU.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use kernels::Error;
use kernels::compile::{SOURCES, arch, compile};

#[test]
fn every_kernel_compiles_for_every_architecture() {
    for (major, minor) in [(8, 0), (9, 0), (10, 0)] {
        let arch = arch(major, minor);
        for source in &SOURCES {
            let code = compile(source, &arch).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(&code[..4], b"\x7fELF", "{} for {arch}", source.name);
            for kernel in source.kernels {
                let name = kernel.as_bytes();
                let named = code.windows(name.len()).any(|w| w == name);
                assert!(named, "{} for {arch} lacks {kernel}", source.name);
            }
        }
    }
}

#[test]
fn an_unknown_architecture_is_refused_by_name() {
    let error = compile(&SOURCES[0], "sm_12345").unwrap_err();
    assert!(matches!(&error, Error::Compile { arch, .. } if arch == "sm_12345"), "{error}");
}
