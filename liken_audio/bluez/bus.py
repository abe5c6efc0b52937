"""One connection to the D-Bus message bus on which BlueZ is: the only place that knows dbus-fast.

It is loaded only where there is a bus. What comes is handed on in the order of the wire, as plain
values: the tree of objects that was asked for (`Tree`) comes between the signals that went before
and those that came after, so none is lost and none counts twice.

Calls: the D-Bus specification, "Standard Interfaces"; BlueZ's doc/org.bluez.Device.rst.
"""

import asyncio
import errno
from collections.abc import Callable

from dbus_fast import AuthError, DBusError, InvalidAddressError, Message, MessageType
from dbus_fast.aio import MessageBus
from dbus_fast.unpack import unpack_variants

from liken_audio.bluez.facts import Added, Changed, Fact, Owner, Removed, Tree

SERVICE = "org.bluez"
CONNECT_SECONDS = 10.0
CALL_SECONDS = 20.0

_DAEMON = "org.freedesktop.DBus"
_OBJECTS = "org.freedesktop.DBus.ObjectManager"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_TREE = "a{oa{sa{sv}}}"
_RULES = (
    f"type='signal',sender='{_DAEMON}',member='NameOwnerChanged',arg0='{SERVICE}'",
    f"type='signal',sender='{SERVICE}',interface='{_OBJECTS}'",
    f"type='signal',sender='{SERVICE}',interface='{_PROPERTIES}',member='PropertiesChanged'",
)


class Bus:
    """A connection; `tell` gets each fact, must not block and must not raise."""

    def __init__(self, connection: MessageBus, tell: Callable[[Fact], None]) -> None:
        self._connection = connection
        self._tell = tell
        self._awaited: set[int] = set()
        self._owner = ""

    @classmethod
    async def open(cls, address: str, tell: Callable[[Fact], None]) -> "Bus":
        """Connect and subscribe, then tell who BlueZ is. `OSError` or `TimeoutError` if not possible."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await MessageBus(bus_address=address).connect()
        except (AuthError, InvalidAddressError, DBusError, EOFError, TypeError) as error:
            raise OSError(errno.EACCES, f"{type(error).__name__}: {error}", address) from error
        bus = cls(connection, tell)
        try:
            connection.add_message_handler(bus._hear)
            for rule in _RULES:
                await bus._call(_message(_DAEMON, _DAEMON, "AddMatch", rule))
            await bus._find_owner()
        except BaseException:
            connection.disconnect()
            raise
        return bus

    async def ask_for_tree(self) -> None:
        """Ask for all objects: `Tree` is told before this returns. Errors as of `call`."""
        message = _message(SERVICE, _OBJECTS, "GetManagedObjects")
        message.serial = self._connection.next_serial()
        self._awaited.add(message.serial)
        try:
            await self._call(message)
        finally:
            self._awaited.discard(message.serial)

    async def call(self, path: str, interface: str, member: str) -> None:
        """Call a method without arguments. `OSError` with BlueZ's words, or `TimeoutError`."""
        message = _message(SERVICE, interface, member)
        message.path = path
        await self._call(message)

    async def closed(self) -> None:
        """Wait for the end of the connection."""
        try:
            await self._connection.wait_for_disconnect()  # type: ignore[no-untyped-call] # the library leaves it untyped
        except (OSError, EOFError, DBusError):
            return

    def close(self) -> None:
        """End the connection; fine if it has ended."""
        if self._connection.connected:
            self._connection.disconnect()

    async def _find_owner(self) -> None:
        try:
            reply = await self._call(_message(_DAEMON, _DAEMON, "GetNameOwner", SERVICE))
        except FileNotFoundError:
            self._pass_on(Owner(""))
        else:
            self._pass_on(Owner(str(reply.body[0])))

    async def _call(self, message: Message) -> Message:
        what = f"{message.interface}.{message.member}"
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reply = await self._connection.call(message)
        except TimeoutError:
            raise TimeoutError(
                errno.ETIMEDOUT, f"no answer in {CALL_SECONDS:.0f} s", what
            ) from None
        except (EOFError, DBusError, ConnectionError) as error:
            raise OSError(errno.ECONNRESET, f"the bus is gone: {error}", what) from error
        if reply is None:
            raise OSError(errno.ECONNRESET, "the bus is gone", what)
        if reply.message_type is MessageType.ERROR:
            name = str(reply.error_name)
            said = next((str(each) for each in reply.body), "")
            is_nobody = name.endswith((".NameHasNoOwner", ".ServiceUnknown", ".UnknownObject"))
            number = errno.ENOENT if is_nobody else errno.EIO
            raise OSError(number, f"{name.removeprefix('org.bluez.Error.')}: {said}", what)
        return reply

    def _hear(self, message: Message) -> bool:
        """Hand a message on; whatever it holds, nothing is raised into the library."""
        fact = self._understood(message)
        if fact is not None:
            self._pass_on(fact)
        return False

    def _pass_on(self, fact: Fact) -> None:
        if isinstance(fact, Owner):
            self._owner = fact.name
        self._tell(fact)

    def _understood(self, message: Message) -> Fact | None:
        if message.message_type is MessageType.SIGNAL:
            return self._signalled(message)
        is_tree = message.reply_serial in self._awaited and message.signature == _TREE
        if message.message_type is MessageType.METHOD_RETURN and is_tree:
            return Tree(unpack_variants(message.body[0]))
        return None

    def _signalled(self, message: Message) -> Fact | None:
        shape = (message.member, message.signature)
        body = unpack_variants(message.body)
        if shape == ("NameOwnerChanged", "sss"):
            is_meant = message.sender == _DAEMON and body[0] == SERVICE
            return Owner(body[2]) if is_meant else None
        if message.sender != self._owner:
            return None
        if shape == ("InterfacesAdded", "oa{sa{sv}}"):
            return Added(body[0], body[1])
        if shape == ("InterfacesRemoved", "oas"):
            return Removed(body[0], body[1])
        if shape == ("PropertiesChanged", "sa{sv}as"):
            return Changed(str(message.path), body[0], body[1], body[2])
        return None


def _message(service: str, interface: str, member: str, argument: str = "") -> Message:
    """Return a call of the service's root object."""
    path = "/org/freedesktop/DBus" if service == _DAEMON else "/"
    return Message(
        destination=service,
        path=path,
        interface=interface,
        member=member,
        signature="s" if argument else "",
        body=[argument] if argument else [],
    )
