//! What the agent asks the plugin for: one word, written by the agent with `write_at`, read by the plugin from its mapping
//! with every collective. A read of a line that nobody writes costs nothing; a look at a socket would be a system call.
//!
//! An order that has a time ends by itself, so that an agent that died leaves no costly mask behind.

/// When the plugin asks NCCL for KernelCh, which tells when the GPU began and ended, and which most of the cost comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// Always.
    On,
    /// Never: only what is enqueued is known, and NCCL does not number collectives in CUDA graphs. From a process's first capture
    /// of one on, and with interfaces before v5, which don't tell of it, KernelCh stays on whatever is ordered.
    Off,
    /// For so many milliseconds from the moment that the rank reads the order, then no more.
    For(u16),
    /// Again and again: from each operation on whose number in its communicator is a multiple of 2 to the `shift`, 31 at most,
    /// for `ms` milliseconds. Collectives have one number on all ranks, so that all ranks of a communicator look at the same ones
    /// without a clock that they share.
    Every {
        /// Which numbers.
        shift: u8,
        /// How long.
        ms: u16,
    },
}

/// An order. Without one the plugin asks for collectives, sends and receives, and KernelCh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Must differ from the order before, or the rank does not see that there is a new one. 0 is no order.
    pub number: u16,
    /// False: NCCL is asked for nothing at all, so that no later order is seen before the next communicator begins.
    pub telemetry: bool,
    /// KernelCh.
    pub kernels: Kernels,
    /// ProxyOp and ProxyStep, for so many milliseconds; 0 is off. They are told of operations that begin after the rank saw the
    /// order: a transfer that hangs already stays unseen.
    pub steps_ms: u16,
}

const TELEMETRY: u64 = 1 << 8;
const KERNELS_ON: u64 = 1 << 9;
const KERNELS_FOR: u64 = 1 << 10;
/// Both: again and again.
const KERNELS_EVERY: u64 = KERNELS_ON | KERNELS_FOR;
const SHIFT_AT: u32 = 11;
const SHIFT: u64 = 31;

impl Order {
    /// What holds without an order.
    pub const DEFAULT: Self = Self { number: 0, telemetry: true, kernels: Kernels::On, steps_ms: 0 };

    /// The bytes to write at [`super::ORDER_AT`].
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        let kernels = match self.kernels {
            Kernels::On => KERNELS_ON,
            Kernels::Off => 0,
            Kernels::For(ms) => KERNELS_FOR | (ms as u64) << 16,
            Kernels::Every { shift, ms } => {
                KERNELS_EVERY | (shift as u64 & SHIFT) << SHIFT_AT | (ms as u64) << 16
            }
        };
        let telemetry = if self.telemetry { TELEMETRY } else { 0 };
        let word = telemetry | kernels | (self.steps_ms as u64) << 32 | (self.number as u64) << 48;
        (word | check(word)).to_le_bytes()
    }

    /// The order of a word; none if there is none yet, or if only a part of it is written.
    #[must_use]
    pub const fn of(word: u64) -> Option<Self> {
        let number = (word >> 48) as u16;
        if number == 0 || check(word) != word & 0xff {
            return None;
        }
        let ms = (word >> 16) as u16;
        let kernels = match word & KERNELS_EVERY {
            0 => Kernels::Off,
            KERNELS_ON => Kernels::On,
            KERNELS_FOR => Kernels::For(ms),
            _ => Kernels::Every { shift: (word >> SHIFT_AT & SHIFT) as u8, ms },
        };
        Some(Self { number, telemetry: word & TELEMETRY != 0, kernels, steps_ms: (word >> 32) as u16 })
    }
}

/// The lowest byte: a check over the others, because nothing promises that eight bytes arrive together.
const fn check(word: u64) -> u64 {
    (word >> 8).wrapping_add(0x5a).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_comes_back() {
        let every = |shift, ms| Kernels::Every { shift, ms };
        for kernels in [
            Kernels::On,
            Kernels::Off,
            Kernels::For(0),
            Kernels::For(1),
            Kernels::For(u16::MAX),
            every(0, 1),
            every(31, u16::MAX),
            every(12, 80),
        ] {
            for telemetry in [true, false] {
                for (number, steps_ms) in [(1, 0), (2, 500), (u16::MAX, u16::MAX)] {
                    let order = Order { number, telemetry, kernels, steps_ms };
                    assert_eq!(Order::of(u64::from_le_bytes(order.to_bytes())), Some(order));
                }
            }
        }
    }

    #[test]
    fn nothing_and_halves_are_no_order() {
        assert_eq!(Order::of(0), None);
        let old = Order { number: 7, telemetry: true, kernels: Kernels::On, steps_ms: 0 }.to_bytes();
        let new =
            Order { number: 8, telemetry: false, kernels: Kernels::For(300), steps_ms: 9000 }.to_bytes();
        for cut in 1..8 {
            let mut bytes = old;
            bytes[..cut].copy_from_slice(&new[..cut]);
            assert!(bytes == new || Order::of(u64::from_le_bytes(bytes)).is_none(), "{cut} bytes");
        }
    }
}
