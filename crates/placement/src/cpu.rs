//! The CPU manager: who gets exclusive CPUs, and which.

pub mod distribute;
pub mod pick;
