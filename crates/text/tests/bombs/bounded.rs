//! Rendering within limits of time and memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::json;
use tern_text::{ChatInput, ChatTemplate, TemplateError};

/// CPU time limit of one template.
const TIME: Duration = Duration::from_secs(3);
/// Peak memory limit of one template.
const MEMORY: usize = 256 << 20;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// Counts the memory of this thread.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get().wrapping_add(layout.size()));
        PEAK.set(PEAK.get().max(HELD.get()));
        // SAFETY: the caller's layout is passed on
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: `ptr` came from `alloc` with this layout
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// CPU time of this thread, which does not depend on the load of the machine.
fn on_core() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(stat.split_whitespace().next()?.parse().ok()?))
}

pub(crate) fn render(source: &str) -> Result<String, TemplateError> {
    let messages = json!([{"role": "user", "content": "A short message."}]);
    let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
    Ok(ChatTemplate::new(source, "<s>", "</s>")?.render(&input)?.text)
}

/// Renders within the bounds of time and memory.
pub(crate) fn bounded(source: &str) -> Result<String, TemplateError> {
    let (start, before) = (on_core(), HELD.get());
    PEAK.set(before);
    let clock = Instant::now();
    let made = render(source);
    let took = match (start, on_core()) {
        (Some(start), Some(end)) => end - start,
        _ => clock.elapsed(),
    };
    let held = PEAK.get() - before;
    let shown: String = source.chars().take(110).collect();
    let result: String = format!("{made:?}").chars().take(90).collect();
    println!("{:6.3} s {:5.1} MB  {shown}  {result}", took.as_secs_f64(), held as f64 / 1e6);
    assert!(took < TIME, "{shown} took {took:?}");
    assert!(held < MEMORY, "{shown} held {held} bytes");
    made
}
