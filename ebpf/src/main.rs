//! The kernel object: one file per family of hooks, all maps in one place. On the host it is an
//! empty program, so that the whole workspace builds and is linted with a stable compiler.
#![cfg_attr(target_arch = "bpf", no_std)]
#![cfg_attr(target_arch = "bpf", no_main)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        unsafe_code,
        reason = "every map value and context is reached through pointers"
    )
)]

#[cfg(target_arch = "bpf")]
mod object;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The licence the kernel asks for: helpers used here are for GPL-compatible programs only.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
