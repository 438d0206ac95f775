//! The logged object, for the machine of the proposal that introduced it.

use host::detected::Detected;
use placement::Topology;
use placement::topology::{Cpu, Parts};
use placement::{CacheId, CoreId, CpuId, NumaId, SocketId};

#[test]
fn the_object_equals_the_windows_proposals() {
    let cpu = |n: u32| Cpu {
        cpu: CpuId(n),
        core: CoreId(n / 2 * 2),
        socket: SocketId(1),
        numa: NumaId(0),
        cache: CacheId(0),
    };
    let parts = Parts { cpus: (0..8).map(cpu).collect(), ..Parts::default() };
    let text = serde_json::to_string(&Detected(&Topology::new(parts).unwrap())).unwrap();
    let expected = concat!(
        r#"{"NumCPUs":8,"NumCores":4,"NumSockets":1,"NumNUMANodes":1,"CPUDetails":{"#,
        r#""0":{"NUMANodeID":0,"SocketID":1,"CoreID":0},"#,
        r#""1":{"NUMANodeID":0,"SocketID":1,"CoreID":0},"#,
        r#""2":{"NUMANodeID":0,"SocketID":1,"CoreID":2},"#,
        r#""3":{"NUMANodeID":0,"SocketID":1,"CoreID":2},"#,
        r#""4":{"NUMANodeID":0,"SocketID":1,"CoreID":4},"#,
        r#""5":{"NUMANodeID":0,"SocketID":1,"CoreID":4},"#,
        r#""6":{"NUMANodeID":0,"SocketID":1,"CoreID":6},"#,
        r#""7":{"NUMANodeID":0,"SocketID":1,"CoreID":6}}}"#,
    );
    assert_eq!(text, expected);
}
