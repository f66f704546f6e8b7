//! Hooks and maps of the object.

mod account;
mod ahead;
mod control;
mod flows;
mod kernel;
mod life;
mod machine;
mod maps;
mod owner;
mod packet;
mod ring;
mod sound;
mod stall;
mod take;
mod wire;
