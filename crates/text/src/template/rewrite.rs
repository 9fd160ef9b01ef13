//! Rewrites compiled code so that every step that can grow a value is metered.
//!
//! The engine bounds steps, not bytes: `{% set x = x ~ x %}` doubles a string in four steps.
//! Here operators, filters, methods and literal text become calls of the functions in `ops`,
//! which count bytes and follow Python where the engine differs.

use minijinja::Value;
use minijinja::machinery::{Instruction, Instructions};

/// Functions that rewritten code calls. Their names are not valid filter names in a template.
pub(super) mod op {
    pub(in super::super) const ADD: &str = "+";
    pub(in super::super) const MUL: &str = "*";
    pub(in super::super) const REM: &str = "%";
    pub(in super::super) const CONCAT: &str = "~";
    pub(in super::super) const EQ: &str = "==";
    pub(in super::super) const NE: &str = "!=";
    pub(in super::super) const ITEM: &str = "[]";
    pub(in super::super) const SLICE: &str = "[:]";
    pub(in super::super) const READ: &str = "(read)";
    pub(in super::super) const BUILT: &str = "(built)";
    pub(in super::super) const STORED: &str = "(stored)";
    pub(in super::super) const BEGIN: &str = "(begin)";
    pub(in super::super) const CAPTURED: &str = "(captured)";
    pub(in super::super) const RETURNED: &str = "(returned)";
    pub(in super::super) const LOOPED: &str = "(looped)";
    pub(in super::super) const SPREAD: &str = "(spread)";
    pub(in super::super) const FILTER: &str = "|";
    pub(in super::super) const METHOD: &str = ".()";
    pub(in super::super) const TEST: &str = "(is)";
    pub(in super::super) const ATTRIBUTE: &str = ".";
    pub(super) const ALL: [&str; 20] = [
        ADD, MUL, REM, CONCAT, EQ, NE, ITEM, SLICE, READ, BUILT, STORED, BEGIN, CAPTURED, RETURNED, LOOPED,
        SPREAD, FILTER, METHOD, TEST, ATTRIBUTE,
    ];
}

/// Names that are methods of Python's dictionaries, with precedence over keys.
const DICT_METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// The same program, metered.
pub(super) fn metered<'s>(code: &Instructions<'s>) -> Instructions<'s> {
    let old: Vec<&Instruction<'s>> = (0..).map_while(|at| code.get(at)).collect();
    let mut jumped_to = vec![false; old.len() + 1];
    for place in old.iter().filter_map(|&instruction| target(&mut instruction.clone()).copied()) {
        if let Some(slot) = jumped_to.get_mut(place as usize) {
            *slot = true;
        }
    }
    let mut all = Vec::with_capacity(2 * old.len());
    let mut starts = Vec::with_capacity(old.len() + 1); // the new position of each old instruction
    let mut lines = Vec::with_capacity(2 * old.len());
    for (i, instruction) in old.iter().enumerate() {
        starts.push(all.len() as u32);
        // a literal name, as in `message['role']`: short to hash, and not an index of a string
        let named = matches!(i.checked_sub(1).map(|i| old[i]), Some(Instruction::LoadConst(name)) if name.as_str().is_some());
        match instruction {
            Instruction::GetItem if named && !jumped_to[i] => all.push(Instruction::GetItem),
            _ => expand(instruction, &mut all),
        }
        let line = code.get_line(i as u32).unwrap_or(0);
        lines.resize(all.len(), u16::try_from(line).unwrap_or(u16::MAX));
    }
    starts.push(all.len() as u32); // a jump past the end
    let end = all.len() as u32;
    let mut new = Instructions::new(code.name(), code.source());
    for (mut instruction, line) in all.into_iter().zip(lines) {
        if let Some(target) = target(&mut instruction) {
            *target = starts.get(*target as usize).copied().unwrap_or(end);
        }
        new.add_with_line(instruction, line);
    }
    new
}

/// The jump target of an instruction, if it has one.
fn target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Jump(to)
        | Instruction::JumpIfFalse(to)
        | Instruction::JumpIfFalseOrPop(to)
        | Instruction::JumpIfTrueOrPop(to)
        | Instruction::Iterate(to)
        | Instruction::BuildMacro(_, to, _) => Some(to),
        _ => None,
    }
}

/// A call of one of our functions with the top `count` values of the stack.
fn call<'s>(name: &'static str, count: u16) -> Instruction<'s> {
    Instruction::ApplyFilter(name, Some(count), slot(name))
}

/// The engine caches filters by a small number; all remaining ones are ours.
fn slot(name: &str) -> u8 {
    op::ALL.iter().position(|&op| op == name).map_or(!0, |at| at as u8)
}

/// `function(values.., name)` instead of the engine's dispatch by name.
fn named<'s>(function: &'static str, name: &str, count: Option<u16>, out: &mut Vec<Instruction<'s>>) {
    out.push(Instruction::LoadConst(Value::from(name)));
    match count {
        Some(count) => out.push(call(function, count.saturating_add(1))),
        // unpacked arguments: their number is on the stack, the name is inserted below it
        None => out.extend([
            Instruction::Swap,
            Instruction::LoadConst(Value::from(1)),
            Instruction::Add,
            Instruction::ApplyFilter(function, None, slot(function)),
        ]),
    }
}

/// Adds the replacement of an instruction.
fn expand<'s>(old: &Instruction<'s>, out: &mut Vec<Instruction<'s>>) {
    use Instruction as I;
    match old {
        I::EmitRaw(text) => out.extend([I::LoadConst(Value::from(*text)), I::Emit]),
        I::Add => out.push(call(op::ADD, 2)),
        I::Mul => out.push(call(op::MUL, 2)),
        I::Rem => out.push(call(op::REM, 2)),
        I::StringConcat => out.push(call(op::CONCAT, 2)),
        I::GetItem => out.push(call(op::ITEM, 2)),
        I::Slice => out.push(call(op::SLICE, 4)),
        I::ApplyFilter(name, count, _) => named(op::FILTER, name, *count, out),
        I::CallMethod(name, count) => named(op::METHOD, name, *count, out),
        I::GetAttr(name) if DICT_METHODS.contains(name) => named(op::ATTRIBUTE, name, Some(1), out),
        I::BeginCapture(_) => out.extend([call(op::BEGIN, 0), I::DiscardTop, old.clone()]),
        I::EndCapture => out.extend([old.clone(), call(op::CAPTURED, 1)]),
        I::CallFunction(..) | I::CallObject(_) => {
            // a recursive loop continues after the check of its `for`
            if let I::CallFunction("loop", Some(1)) = old {
                out.push(call(op::LOOPED, 1));
            }
            // a macro writes to a separate output
            out.extend([call(op::BEGIN, 0), I::DiscardTop, old.clone(), call(op::RETURNED, 1)]);
        }
        I::FastRecurse => out.extend([call(op::LOOPED, 1), old.clone()]),
        I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => out.extend([old.clone(), call(op::BUILT, 1)]),
        I::BuildKwargs(_) | I::MergeKwargs(_) => out.extend([old.clone(), call(op::READ, 1)]),
        I::UnpackLists(count) => {
            let count = u16::try_from(*count).unwrap_or(u16::MAX);
            out.extend([call(op::SPREAD, count), I::UnpackLists(1)]);
        }
        I::Eq => out.push(call(op::EQ, 2)),
        I::Ne => out.push(call(op::NE, 2)),
        // comparing costs no more than reading both sides
        I::Lt | I::Lte | I::Gt | I::Gte | I::In | I::CompareAndPreserve(_) => {
            out.extend([call(op::READ, 1), I::Swap, call(op::READ, 1), I::Swap, old.clone()]);
        }
        // of the tests without arguments only these read more than the kind of their value
        I::PerformTest("lower" | "upper", Some(1), _) => out.extend([call(op::READ, 1), old.clone()]),
        I::PerformTest(_, Some(1), _) => out.push(old.clone()),
        I::PerformTest(name, count, _) => named(op::TEST, name, *count, out),
        I::SetAttr(_) => out.extend([I::Swap, call(op::STORED, 1), I::Swap, old.clone()]),
        I::PushLoop(_) => out.extend([call(op::LOOPED, 1), old.clone()]),
        _ => out.push(old.clone()),
    }
}
