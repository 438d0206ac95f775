//! The object that the agent logs as `Detected CPU topology` on start.
//!
//! Main type: [`Detected`]. Spellings are the kubelet's, on which log filters rely. It is a view of
//! a [`Topology`] for the log and is never parsed.

use placement::Topology;
use placement::topology::Cpu;
use serde::ser::{Serialize, SerializeMap as _, SerializeStruct as _, Serializer};

/// The log message of the object.
pub const MESSAGE: &str = "Detected CPU topology";

/// A topology in its logged form.
#[derive(Clone, Copy, Debug)]
pub struct Detected<'a>(pub &'a Topology);

impl Serialize for Detected<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let topology = self.0;
        // The CPU manager, whose view this is, does not count nodes without CPUs.
        let nodes = topology.nodes().iter().filter(|node| !node.cpus.is_empty()).count();
        let mut object = serializer.serialize_struct("Topology", 5)?;
        object.serialize_field("NumCPUs", &topology.cpus().len())?;
        object.serialize_field("NumCores", &topology.cores().len())?;
        object.serialize_field("NumSockets", &topology.sockets().len())?;
        object.serialize_field("NumNUMANodes", &nodes)?;
        object.serialize_field("CPUDetails", &Details(topology.cpus()))?;
        object.end()
    }
}

struct Details<'a>(&'a [Cpu]);

impl Serialize for Details<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for cpu in self.0 {
            map.serialize_entry(&cpu.cpu.to_string(), &Detail(cpu))?;
        }
        map.end()
    }
}

struct Detail<'a>(&'a Cpu);

impl Serialize for Detail<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("CPUInfo", 3)?;
        object.serialize_field("NUMANodeID", &self.0.numa)?;
        object.serialize_field("SocketID", &self.0.socket)?;
        object.serialize_field("CoreID", &self.0.core)?;
        object.end()
    }
}
