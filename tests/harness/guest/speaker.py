"""Runs in the guest: a Bluetooth adapter of the machine, and a loudspeaker on the same radio.

    python -m tests.harness.guest.speaker FOLDER SOCKET

Both are emulated with bumble: the adapter is plugged into the kernel by /dev/vhci, the loudspeaker is
an A2DP sink that takes SBC and has an absolute volume (AVRCP). What it is sent is written, as SBC
frames, to FOLDER/heard.sbc; what happens is printed, with the guest's uptime. Each line that comes
over SOCKET is a command and is answered by one line:

    off, on       the loudspeaker is switched off or on; it doesn't call anybody by itself
    pull, plug    the adapter is pulled out of the machine, or plugged in (at the start it is)
    volume N      its own knob is turned, 0 to 127
    show          its volume
    headset       from its next connection on it has a microphone too (HFP)
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from bumble import a2dp, avdtp, avrcp, hci, hfp, rfcomm
from bumble.controller import Controller
from bumble.device import Device, DeviceConfiguration
from bumble.hci import LmpFeatureMask as Feature
from bumble.host import Host
from bumble.link import LocalLink
from bumble.pairing import PairingConfig
from bumble.transport import open_transport
from bumble.transport.common import AsyncPipeSink

ADAPTER = "00:1B:DC:00:00:01"
SPEAKER = "00:1B:DC:00:00:02"
NAME = "Lab Speaker"
HEARD = "heard.sbc"
# Audio/video, loudspeaker, with the services rendering and audio (Assigned Numbers, 2.8).
_CLASS = 0x240414
_PAGE_SECONDS = 2.0
_PACKETS_A_WRITE = 8
_HEADSET_RECORD = 0x00010004
_HEADSET = hfp.HfConfiguration(
    supported_hf_features=[hfp.HfFeature.REMOTE_VOLUME_CONTROL],
    supported_hf_indicators=[],
    supported_audio_codecs=[hfp.AudioCodec.CVSD],
)


class Radio(Controller):
    """bumble's controller, with what Linux expects of a BR/EDR one and that one leaves out."""

    lmp_features = (
        Feature.LMP_3_SLOT_PACKETS
        | Feature.LMP_5_SLOT_PACKETS
        | Feature.ENCRYPTION
        | Feature.ROLE_SWITCH
        | Feature.SCO_LINK
        | Feature.HV2_PACKETS
        | Feature.HV3_PACKETS
        | Feature.RSSI_WITH_INQUIRY_RESULTS
        | Feature.EXTENDED_INQUIRY_RESPONSE
        | Feature.SECURE_SIMPLE_PAIRING_CONTROLLER_SUPPORT
        | Feature.EXTENDED_FEATURES
    )
    lmp_features_max_page_number = 1
    acl_data_packet_length = 1021
    supported_commands = {
        hci.HCI_DISCONNECT_COMMAND,
        hci.HCI_SET_EVENT_MASK_COMMAND,
        hci.HCI_RESET_COMMAND,
        hci.HCI_READ_LOCAL_VERSION_INFORMATION_COMMAND,
        hci.HCI_READ_BD_ADDR_COMMAND,
        hci.HCI_READ_LOCAL_SUPPORTED_FEATURES_COMMAND,
        hci.HCI_READ_BUFFER_SIZE_COMMAND,
        hci.HCI_READ_LOCAL_EXTENDED_FEATURES_COMMAND,
        hci.HCI_WRITE_SIMPLE_PAIRING_MODE_COMMAND,
        hci.HCI_SETUP_SYNCHRONOUS_CONNECTION_COMMAND,
    }
    synchronous_data_packet_length = 60
    total_num_synchronous_data_packets = 8
    class_of_device = 0
    inquiry_response = bytes(240)
    _has_left = False

    def on_hci_command(self, command: Any) -> Any:
        """Agree to what no other handler takes: only a real radio's settings are left."""
        if isinstance(command, hci.HCI_AsyncCommand):
            self._send_hci_command_status(
                hci.HCI_ErrorCode.UNKNOWN_HCI_COMMAND_ERROR, command.op_code
            )
            return None
        if isinstance(command, hci.HCI_SyncCommand):
            return command.return_parameters_class.from_parameters(bytes(64))
        code = command.op_code.to_bytes(2, "little")
        host: Any = self.host
        host.on_packet(bytes([4, 14, 3 + 16, 1]) + code + bytes(16))
        return None

    def send_hci_packet(self, packet: Any) -> None:
        """Call keys what they are: Linux hangs up on one of P-256 where there is no AES-CCM."""
        if self._has_left:
            return
        if isinstance(packet, hci.HCI_Link_Key_Notification_Event):
            packet.key_type = hci.LinkKeyType.UNAUTHENTICATED_COMBINATION_KEY_GENERATED_FROM_P_192
        super().send_hci_packet(packet)

    def leave(self) -> None:
        """Go off the air: the far ends lose the connection a moment later."""
        self.link.remove_controller(self)
        for address in list(self.classic_connections):
            peer = self.link.find_classic_controller(address)
            if peer is not None:
                peer.on_classic_disconnected(
                    self.public_address, hci.HCI_ErrorCode.CONNECTION_TIMEOUT_ERROR
                )
        self._has_left = True

    def on_hci_write_class_of_device_command(self, command: Any) -> Any:
        """Remember it for those who look around."""
        self.class_of_device = command.class_of_device
        return super().on_hci_write_class_of_device_command(command)

    def on_hci_write_extended_inquiry_response_command(self, command: Any) -> Any:
        """Remember it for those who look around."""
        self.inquiry_response = command.extended_inquiry_response
        return super().on_hci_write_extended_inquiry_response_command(command)

    def on_hci_inquiry_command(self, command: Any) -> None:
        """Look around; Linux drops answers that come while it is busy with the status."""
        self._send_hci_command_status(hci.HCI_COMMAND_STATUS_PENDING, command.op_code)
        loop = asyncio.get_running_loop()
        loop.call_later(1, self._tell_of_peers)
        loop.call_later(
            2, self.send_hci_packet, hci.HCI_Inquiry_Complete_Event(status=hci.HCI_SUCCESS)
        )

    def _tell_of_peers(self) -> None:
        for peer in self.link.controllers - {self}:
            if peer.classic_scan_enable & 1:
                self.send_hci_packet(
                    hci.HCI_Extended_Inquiry_Result_Event(
                        num_responses=1,
                        bd_addr=peer.public_address,
                        page_scan_repetition_mode=1,
                        reserved=0,
                        class_of_device=peer.class_of_device,
                        clock_offset=0,
                        rssi=-40,
                        extended_inquiry_response=bytes(peer.inquiry_response).ljust(240, b"\0"),
                    )
                )

    def _reaches(self, address: Any) -> bool:
        peer = self.link.find_classic_controller(address)
        return peer is not None and bool(peer.classic_scan_enable & 2)

    def on_hci_create_connection_command(self, command: Any) -> None:
        """Page a peer; one that is off doesn't answer."""
        if self._reaches(command.bd_addr):
            super().on_hci_create_connection_command(command)
            return
        self._send_hci_command_status(hci.HCI_COMMAND_STATUS_PENDING, command.op_code)
        asyncio.get_running_loop().call_later(
            _PAGE_SECONDS,
            self.on_classic_connection_complete,
            command.bd_addr,
            hci.HCI_ErrorCode.PAGE_TIMEOUT_ERROR,
        )

    def on_hci_remote_name_request_command(self, command: Any) -> None:
        """Ask a peer's name; one that is off doesn't answer."""
        if self._reaches(command.bd_addr):
            super().on_hci_remote_name_request_command(command)
        else:
            self._send_hci_command_status(hci.HCI_ErrorCode.PAGE_TIMEOUT_ERROR, command.op_code)

    def on_hci_authentication_requested_command(self, command: Any) -> None:
        """Ask the host for a known key first; bumble's own goes on to pair without one."""
        connection = self.find_classic_connection_by_handle(command.connection_handle)
        self._send_hci_command_status(hci.HCI_COMMAND_STATUS_PENDING, command.op_code)
        self.send_hci_packet(hci.HCI_Link_Key_Request_Event(bd_addr=connection.peer_address))

    def on_hci_set_connection_encryption_command(self, command: Any) -> None:
        """Say on both sides that the connection is encrypted."""
        connection = self.find_classic_connection_by_handle(command.connection_handle)
        self._send_hci_command_status(hci.HCI_COMMAND_STATUS_PENDING, command.op_code)
        peer = self.link.find_classic_controller(connection.peer_address)
        far_end = peer.classic_connections[self.public_address]
        for radio, handle in ((self, connection.handle), (peer, far_end.handle)):
            radio.send_hci_packet(
                hci.HCI_Encryption_Change_Event(
                    status=hci.HCI_SUCCESS,
                    connection_handle=handle,
                    encryption_enabled=command.encryption_enable,
                )
            )


class Knob(avrcp.Delegate):
    """The loudspeaker's volume, 0 to 127."""

    def __init__(self) -> None:
        super().__init__(supported_events=[avrcp.EventId.VOLUME_CHANGED])
        self.volume = 64

    async def set_absolute_volume(self, volume: int) -> None:
        """Take the volume that the machine sets."""
        say(f"volume {volume}")
        self.volume = volume


class Loudspeaker:
    """What a listener has at home."""

    def __init__(self, device: Device, heard: Path) -> None:
        self.knob = Knob()
        self._device = device
        self._remote = avrcp.Protocol(self.knob)
        self._listener: Any = None
        self._connection: Any = None
        self._packets: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = heard.open("ab", buffering=0)

    async def start(self) -> None:
        """Switch it on for the first time."""
        device = self._device
        device.sdp_service_records = {
            0x00010001: a2dp.make_audio_sink_service_sdp_records(0x00010001),
            0x00010002: avrcp.TargetServiceSdpRecord(
                0x00010002, supported_features=2
            ).to_service_attributes(),
            0x00010003: avrcp.ControllerServiceSdpRecord(0x00010003).to_service_attributes(),
        }
        device.pairing_config_factory = lambda _connection: PairingConfig(mitm=False)
        device.on("connection", self._connected)
        await device.power_on()
        self._listener = avdtp.Listener.for_device(device)
        self._listener.on("connection", self._stream_connected)
        self._remote.listen(device)
        await self._answer(is_on=True)

    async def switch_on(self) -> None:
        """Answer again."""
        await self._answer(is_on=True)

    async def switch_off(self) -> None:
        """Hang up and answer no more."""
        await self._answer(is_on=False)
        if self._connection is not None:
            await self._connection.disconnect()

    def become_headset(self) -> None:
        """Have a microphone, as who asks for its services hears from now on."""
        server = rfcomm.Server(self._device)
        channel = server.listen(self._call_connected)
        records = hfp.make_hf_sdp_records(_HEADSET_RECORD, channel, _HEADSET)
        self._device.sdp_service_records |= {_HEADSET_RECORD: records}

    def _call_connected(self, channel: Any) -> None:
        protocol = hfp.HfProtocol(channel, _HEADSET)
        task = asyncio.get_running_loop().create_task(self._introduce(protocol))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _introduce(self, protocol: Any) -> None:
        """Say what a headset says first."""
        await protocol.initiate_slc()
        say("headset connected")
        await protocol.run()

    def turn(self, volume: int) -> None:
        """Turn the knob."""
        self.knob.volume = volume
        self._remote.notify_volume_changed(volume)

    async def _answer(self, *, is_on: bool) -> None:
        await self._device.set_discoverable(is_on)
        await self._device.set_connectable(is_on)

    def _connected(self, connection: Any) -> None:
        say(f"connected {connection.peer_address}")
        self._connection = connection
        connection.on("disconnection", self._disconnected)

    def _disconnected(self, reason: int) -> None:
        say(f"disconnected {reason}")
        self._connection = None
        self._listener.servers.clear()

    def _stream_connected(self, protocol: Any) -> None:
        sink = protocol.add_sink(_sbc())
        for event in ("open", "start", "suspend", "stop", "close", "abort"):
            sink.on(event, lambda event=event: self._stream_event(event))
        sink.on("rtp_packet", self._received)

    def _stream_event(self, event: str) -> None:
        say(f"stream {event}")
        self._flush()

    def _received(self, packet: Any) -> None:
        # One byte before the frames tells how many they are (A2DP 1.3, 4.3.4).
        self._packets.append(bytes(packet.payload[1:]))
        if len(self._packets) >= _PACKETS_A_WRITE:
            self._flush()

    def _flush(self) -> None:
        self._heard.write(b"".join(self._packets))
        self._packets.clear()


class Bench:
    """The radio with both on it, and what the commands do."""

    def __init__(self, heard: Path) -> None:
        self._link = LocalLink()
        self._transport: Any = None
        self._adapter: Radio | None = None
        radio = Radio("speaker", link=self._link, public_address=SPEAKER)
        configuration = DeviceConfiguration(
            name=NAME, class_of_device=_CLASS, classic_enabled=True, le_enabled=False
        )
        device = Device(config=configuration, host=Host(radio, AsyncPipeSink(radio)))
        self.speaker = Loudspeaker(device, heard)

    async def plug(self) -> None:
        """Plug the adapter in."""
        self._transport = await open_transport("vhci")
        self._adapter = Radio(
            "adapter", self._transport.source, self._transport.sink, self._link, ADAPTER
        )

    async def pull(self) -> None:
        """Pull it."""
        assert self._adapter is not None
        self._adapter.leave()
        await self._transport.close()

    async def obey(self, line: str) -> str:
        """Do what a command says; return the answer."""
        match line.split():
            case ["off"]:
                await self.speaker.switch_off()
            case ["on"]:
                await self.speaker.switch_on()
            case ["pull"]:
                await self.pull()
            case ["plug"]:
                await self.plug()
            case ["volume", level]:
                self.speaker.turn(int(level))
            case ["headset"]:
                self.speaker.become_headset()
            case ["show"]:
                return str(self.speaker.knob.volume)
            case _:
                raise ValueError(f"no such command: {line}")
        return "done"


def say(text: str) -> None:
    """Print what happened, and when."""
    print(f"{time.clock_gettime(time.CLOCK_BOOTTIME):.2f} {text}", flush=True)


def _sbc() -> Any:
    sbc = a2dp.SbcMediaCodecInformation
    return avdtp.MediaCodecCapabilities(
        media_type=avdtp.AVDTP_AUDIO_MEDIA_TYPE,
        media_codec_type=a2dp.A2DP_SBC_CODEC_TYPE,
        media_codec_information=sbc(
            sampling_frequency=sbc.SamplingFrequency.SF_44100 | sbc.SamplingFrequency.SF_48000,
            channel_mode=sbc.ChannelMode(0xF),
            block_length=sbc.BlockLength(0xF),
            subbands=sbc.Subbands(0x3),
            allocation_method=sbc.AllocationMethod(0x3),
            minimum_bitpool_value=2,
            maximum_bitpool_value=53,
        ),
    )


async def _serve(folder: Path, path: Path) -> None:
    bench = Bench(folder / HEARD)
    await bench.speaker.start()
    await bench.plug()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().strip()
        try:
            answer = await bench.obey(line)
        except Exception as error:  # noqa: BLE001 the caller is told, whatever it is
            answer = f"failed: {error!r}"
        say(f"{line}: {answer}")
        writer.write(f"{answer}\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(take, path)
    say("ready")
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), Path(sys.argv[2])))
