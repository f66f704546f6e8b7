//! The agent's hand in the kernel: it runs this program (`BPF_PROG_TEST_RUN`) to adopt, settle or
//! drop a flow, so that every request ends in the one place that counts it.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::macros::socket_filter;
use aya_ebpf::programs::SkBuffContext;
use enginetap_ebpf::abi::control::{Order, answer, order};
use enginetap_ebpf::abi::counters::{dropped, unparsed};
use enginetap_ebpf::abi::flow::{Flow, FlowKey, closer, state};
use enginetap_ebpf::abi::listener::ListenerKey;
use enginetap_ebpf::atomics::{add, cas, swap};
use enginetap_ebpf::stream::{Ending, Env, end_all};

use super::account::{self, flush_bytes, owner};
use super::ahead::forget_ahead;
use super::flows::{
    Birth, change_bits, confirm, create, is, lock, port_bit, set_bits, unlock, work,
};
use super::kernel::now;
use super::maps::{FLOWS, FLOWS_DROPPED, LISTENERS, PORTS, PROCS, bump};
use super::packet::load;
use super::stall::{leave_task, watch_task};

/// Surroundings of the machine without a packet.
struct NoPacket;

impl Env for NoPacket {
    unsafe fn load<const MAX: u32>(&mut self, _: u32, _: *mut u8, _: u32) -> bool {
        false
    }
    unsafe fn piece(&mut self, _: *mut Flow, _: u32, _: u32, _: u64, _: u32, _: u64) -> bool {
        false
    }
    unsafe fn started(&mut self, _: *mut Flow, _: u32) {}
    #[inline(always)]
    unsafe fn ended(
        &mut self,
        f: *mut Flow,
        slot: u32,
        ending: Ending,
        now: u64,
        excess: u32,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { account::end_request(f, slot, ending as u32, now, excess) != 0 }
    }
    unsafe fn unparsed(&mut self, _: *mut Flow, _: u32) {}
    unsafe fn missed(&mut self, _: *mut Flow) {}
}

/// Hook: none; a socket filter that is never attached. The packet holds an [`Order`].
#[socket_filter]
pub fn control_order(ctx: SkBuffContext) -> i64 {
    let skb = ctx.as_ptr() as *mut __sk_buff;
    let Some(key) = load::<40>(skb, 24) else {
        return answer::REJECTED;
    };
    let Some(head) = load::<24>(skb, 0) else {
        return answer::REJECTED;
    };
    // SAFETY: both types are plain integers of exactly these sizes.
    let (order, key) = unsafe {
        (
            core::mem::transmute::<[u8; 24], Order>(head),
            core::mem::transmute::<[u8; 40], FlowKey>(key),
        )
    };
    match order.what {
        order::ADOPT => adopt(&key, &order),
        order::SETTLE => settle(&key, &order),
        order::DROP => drop_flow(&key, &order),
        order::LOOK => look(&order),
        order::LEAVE => leave(&order),
        order::UNLISTEN => unlisten(&key, &order),
        order::SERVE => serve(&order, true),
        order::UNSERVE => serve(&order, false),
        _ => answer::REJECTED,
    }
}

#[inline(always)]
fn adopt(key: &FlowKey, o: &Order) -> i64 {
    if FLOWS.get_ptr(key).is_some() {
        return answer::NOTHING;
    }
    let birth = Birth {
        request_seq: None,
        reply_seq: None,
        adopted: true,
        workload: o.argument,
    };
    match create(key, &birth) {
        Some(f) => {
            // SAFETY: a live map value, changed by atomics.
            unsafe { confirm(f) };
            answer::DONE
        }
        None => answer::NOTHING,
    }
}

/// Ends what is open on a flow and forgets it.
#[inline(always)]
fn settle(key: &FlowKey, o: &Order) -> i64 {
    let Some(f) = FLOWS.get_ptr_mut(key) else {
        return answer::NOTHING;
    };
    // SAFETY: a live map value; both locks are taken before anything is changed.
    unsafe {
        if (*f).id != o.flow {
            return answer::NOTHING;
        }
        if !finish(f, key, o.argument as u64) {
            return answer::BUSY;
        }
    }
    answer::DONE
}

/// Ends what is open on a flow and forgets it; false when a lock was held for too long. `who`
/// closed, unless that is known.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn finish(f: *mut Flow, key: &FlowKey, who: u64) -> bool {
    // SAFETY: the caller's flow; both locks are taken before anything is changed.
    unsafe {
        if !hold_both(f, key) {
            return false;
        }
        cas(&raw mut (*f).closer, closer::NONE, who);
        end_flow(f, key);
    }
    true
}

#[inline(always)]
unsafe fn end_flow(f: *mut Flow, key: &FlowKey) {
    // SAFETY: the caller holds both locks.
    unsafe {
        let head = (*f).requests.state;
        if head == state::FIRST_LINE || head == state::HEADERS {
            account::unparsed(f, unparsed::PARTIAL_HEAD);
        }
        end_all(&mut NoPacket, f, Ending::Closed, u32::MAX, o_time(f));
        forget(f, key);
    }
}

/// Ends what is open on a flow whose socket is gone and forgets it, without waiting for its locks;
/// 0 when one is held.
///
/// A global function: the kernel verifies it once.
///
/// # Safety
/// `f` is live.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn settle_now(f: *mut Flow) -> u64 {
    // SAFETY: the caller's flow; both locks are taken before anything is changed.
    unsafe {
        if f.is_null() {
            return 0;
        }
        let key = (*f).key;
        if !try_both(f, &key) {
            return 0;
        }
        end_flow(f, &key);
        1
    }
}

/// When the flow ended: when its socket closed, else now.
#[inline(always)]
unsafe fn o_time(f: *const Flow) -> u64 {
    // SAFETY: a live map value of plain integers.
    let closed = unsafe { (*f).closed };
    if closed > 1 { closed } else { now() }
}

/// Forgets a flow that no socket of this namespace ever confirmed.
#[inline(always)]
fn drop_flow(key: &FlowKey, o: &Order) -> i64 {
    let Some(f) = FLOWS.get_ptr_mut(key) else {
        return answer::NOTHING;
    };
    // SAFETY: as above.
    unsafe {
        if (*f).id != o.flow || (*f).confirmed != 0 {
            return answer::NOTHING;
        }
        bump(&FLOWS_DROPPED, dropped::NOT_LOCAL);
        forget_ahead(f);
        let _ = FLOWS.remove(key);
    }
    answer::DONE
}

/// Looks at a task, or no longer.
#[inline(always)]
fn serve(o: &Order, begins: bool) -> i64 {
    if begins {
        watch_task(o.argument);
    } else {
        leave_task(o.argument);
    }
    answer::DONE
}

/// Makes a port worth a look.
#[inline(always)]
fn look(o: &Order) -> i64 {
    let (cell, bit) = port_bit(o.argument as u16);
    let Some(cell) = cell else {
        return answer::REJECTED;
    };
    // SAFETY: a live map value.
    unsafe {
        if o.flow == 0 {
            set_bits(&raw mut (*cell).recognise, bit);
        } else {
            set_bits(&raw mut (*cell).watched, bit);
        }
    }
    answer::DONE
}

/// Leaves ports alone again.
#[inline(always)]
fn leave(o: &Order) -> i64 {
    let Some(cell) = PORTS.get_ptr_mut(o.argument) else {
        return answer::REJECTED;
    };
    // SAFETY: a live map value.
    unsafe {
        change_bits(&raw mut (*cell).watched, 0, o.flow);
        change_bits(&raw mut (*cell).recognise, 0, o.flow);
        change_bits(&raw mut (*cell).active, 0, o.flow);
    }
    answer::DONE
}

/// Forgets a listener, unless another began to listen there meanwhile.
#[inline(always)]
fn unlisten(key: &FlowKey, o: &Order) -> i64 {
    let key = ListenerKey {
        netns: key.netns,
        port: key.server_port,
        pad: 0,
        addr: key.server,
    };
    let Some(known) = LISTENERS.get_ptr(key) else {
        return answer::NOTHING;
    };
    // SAFETY: a live map value of plain integers.
    if unsafe { (*known).since_ns } > o.flow {
        return answer::BUSY;
    }
    let _ = LISTENERS.remove(key);
    answer::DONE
}

#[inline(always)]
unsafe fn hold_both(f: *mut Flow, key: &FlowKey) -> bool {
    // SAFETY: the caller's flow is live.
    unsafe {
        if !lock(&raw mut (*f).requests) {
            return false;
        }
        if !lock(&raw mut (*f).replies) {
            unlock(&raw mut (*f).requests);
            return false;
        }
        if is(f, key) {
            return true;
        }
        unlock(&raw mut (*f).replies);
        unlock(&raw mut (*f).requests);
        false
    }
}

/// Takes a flow out of the table and the counts of what is open. Both locks are held and stay so:
/// the element is overwritten as a whole when it is used again.
#[inline(always)]
unsafe fn forget(f: *mut Flow, key: &FlowKey) {
    // SAFETY: the caller holds both locks.
    unsafe {
        flush_bytes(f, false);
        flush_bytes(f, true);
        forget_ahead(f);
        if (*f).counted != 0
            && let Some(w) = work((*f).workload)
        {
            let who = (*f).closer as usize;
            if who < closer::COUNT {
                add((&raw mut (*w).closed as *mut u64).add(who), 1);
            }
        }
        if (*f).owner_tgid != 0
            && let Some(p) = PROCS.get_ptr_mut(owner(f))
        {
            add(&raw mut (*p).flows, u64::MAX);
        }
        let _ = FLOWS.remove(key);
    }
}

/// Forgets a flow on which nothing is open, without waiting for its locks; false when one is held.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn retire(f: *mut Flow, key: &FlowKey) -> bool {
    // SAFETY: the caller's flow is live; its words are changed by atomics.
    unsafe {
        if !try_both(f, key) {
            return false;
        }
        if (*f).started != (*f).ended {
            swap(&raw mut (*f).replies.lock, 0);
            swap(&raw mut (*f).requests.lock, 0);
            return false;
        }
        forget(f, key);
        true
    }
}

/// Takes both locks if they are free.
#[inline(always)]
unsafe fn try_both(f: *mut Flow, key: &FlowKey) -> bool {
    // SAFETY: the caller's flow is live; its words are changed by atomics.
    unsafe {
        if !cas(&raw mut (*f).requests.lock, 0, 1) {
            return false;
        }
        if !cas(&raw mut (*f).replies.lock, 0, 1) {
            swap(&raw mut (*f).requests.lock, 0);
            return false;
        }
        if is(f, key) {
            return true;
        }
        swap(&raw mut (*f).replies.lock, 0);
        swap(&raw mut (*f).requests.lock, 0);
        false
    }
}
