"""A mesh network on chip with multicast, in-network reduction and barriers, cycle by cycle."""
