//! Link arguments of `libvipl.so.1`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // The name programs are linked against. It never changes.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libvipl.so.1");
    // Threads of the library outlive `dlclose`, and thread-locals have destructors in it: stay
    // mapped.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
