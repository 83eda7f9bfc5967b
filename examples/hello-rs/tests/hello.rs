//! The example, on devices of each kind.

use vipl_ctest::run_tool;

#[test]
fn a_message_and_an_rdma_write_arrive() {
    for device in ["via_lo", "clan:", "sim:"] {
        let (output, said, errors) = run_tool(env!("CARGO_BIN_EXE_hello-rs"), &[device]);
        assert!(output.status.success(), "{device}: {errors}");
        let expected = "26 bytes: hello from another process; by RDMA: RDMA Write !\n";
        assert_eq!(said, expected, "{device}: {errors}");
    }
}
