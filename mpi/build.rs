//! Link arguments of `libvipl-fi.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvipl-fi.so");
    // Threads of the provider may still run when libfabric closes it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
