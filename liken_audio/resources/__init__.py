"""The Sink and Source resources: decode, judge, encode. Pure: no IO, no clock, no log."""
