-- Wireshark and tshark: VIPL's frames between two VIs, Ethertype 0x88b5 or in datagrams, and the envelopes of
-- agents over UDP (docs/WIRE.md).
--
--   tshark -X lua_script:vipl.lua -i eth0 -f 'ether proto 0x88b5'
--   wireshark: put this file into the folder of personal Lua plugins (Help, About, Folders)

local vipl = Proto("vipl", "Virtual Interface Architecture")

local kinds = {
    [1] = "DATA", [2] = "ACK", [3] = "PROBE", [4] = "CLOSE", [5] = "CLOSED", [6] = "TRY", [7] = "TRIED",
    [8] = "SLICE", [255] = "VERSIONS",
}
local part_kinds = { [1] = "SEND", [2] = "PIECE", [3] = "WRITE", [4] = "READ", [5] = "DATA" }
local part_headers = { [1] = 12, [2] = 20, [3] = 32, [4] = 32, [5] = 20 }
local reasons = {
    [1] = "disconnected", [2] = "lost", [3] = "receive failed", [7] = "target refused",
}

local f = {
    version = ProtoField.uint8("vipl.version", "Version"),
    kind = ProtoField.uint8("vipl.kind", "Kind", base.DEC, kinds),
    to_endpoint = ProtoField.uint16("vipl.to_endpoint", "To endpoint"),
    from_endpoint = ProtoField.uint16("vipl.from_endpoint", "From endpoint"),
    length = ProtoField.uint16("vipl.length", "Length"),
    to_vi = ProtoField.uint32("vipl.to_vi", "To VI"),
    check = ProtoField.uint64("vipl.check", "Key check", base.HEX),
    sequence = ProtoField.uint32("vipl.sequence", "Sequence"),
    acknowledged = ProtoField.uint32("vipl.acknowledged", "Acknowledged"),
    window = ProtoField.uint16("vipl.window", "Window"),
    flags = ProtoField.uint8("vipl.flags", "Flags", base.DEC),
    ask = ProtoField.bool("vipl.flags.ask", "Asks for an acknowledgement"),
    sealed = ProtoField.bool("vipl.flags.sealed", "Sealed"),
    marks = ProtoField.uint8("vipl.marks", "Marked frames"),
    seal_number = ProtoField.uint64("vipl.seal.number", "Number of the seal"),
    seal_hash = ProtoField.bytes("vipl.seal.hash", "Keyed hash"),
    crc = ProtoField.uint32("vipl.crc", "CRC32C", base.HEX),
    crc_good = ProtoField.bool("vipl.crc.good", "CRC32C is right"),
    part = ProtoField.none("vipl.part", "Part"),
    part_kind = ProtoField.uint8("vipl.part.kind", "Kind", base.DEC, part_kinds),
    part_flags = ProtoField.uint8("vipl.part.flags", "Flags", base.DEC),
    part_bytes = ProtoField.uint16("vipl.part.bytes", "Bytes"),
    part_number = ProtoField.uint32("vipl.part.number", "Number"),
    part_immediate = ProtoField.uint32("vipl.part.immediate", "Immediate data"),
    part_total = ProtoField.uint32("vipl.part.total", "Total"),
    part_offset = ProtoField.uint32("vipl.part.offset", "Offset"),
    part_address = ProtoField.uint64("vipl.part.address", "Remote address", base.HEX),
    part_handle = ProtoField.uint32("vipl.part.handle", "Remote handle"),
    part_payload = ProtoField.bytes("vipl.part.payload", "Payload"),
    map = ProtoField.bytes("vipl.ack.map", "Frames beyond the acknowledged one"),
    close_reason = ProtoField.uint16("vipl.close.reason", "Reason", base.DEC, reasons),
    close_vi = ProtoField.uint32("vipl.close.from_vi", "From VI"),
    close_operations = ProtoField.uint32("vipl.close.operations", "Operations processed"),
    tried = ProtoField.uint16("vipl.tried.length", "Length that has arrived"),
    slice_offset = ProtoField.uint16("vipl.slice.offset", "Offset in the body of the frame"),
    slice_total = ProtoField.uint16("vipl.slice.total", "Length of the body of the frame"),
    slice_payload = ProtoField.bytes("vipl.slice.payload", "Payload"),
    lowest = ProtoField.uint8("vipl.versions.lowest", "Lowest version spoken"),
    highest = ProtoField.uint8("vipl.versions.highest", "Highest version spoken"),
    refused = ProtoField.uint8("vipl.versions.refused", "Version refused"),
}
vipl.fields = f

local malformed = ProtoExpert.new(
    "vipl.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
local wrong_crc = ProtoExpert.new(
    "vipl.crc.wrong", "Wrong CRC32C", expert.group.CHECKSUM, expert.severity.ERROR)
vipl.experts = { malformed, wrong_crc }

local bits = bit32 or bit
local crc_table = {}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        local low = crc % 2
        crc = math.floor(crc / 2)
        if low == 1 then
            crc = bits.bxor(crc, 0x82f63b78) % 4294967296
        end
    end
    crc_table[byte] = crc
end

local function crc32c(range)
    local bytes = range:bytes()
    local crc = 4294967295
    for i = 0, bytes:len() - 1 do
        local place = bits.bxor(crc % 256, bytes:get_index(i)) % 256
        crc = bits.bxor(math.floor(crc / 256), crc_table[place]) % 4294967296
    end
    return 4294967295 - crc
end

local function add_crc(tree, buffer, at)
    tree:add(f.crc, buffer(at, 4))
    local good = crc32c(buffer(0, at)) == buffer(at, 4):uint()
    tree:add(f.crc_good, buffer(at, 4), good):set_generated()
    if not good then
        tree:add_proto_expert_info(wrong_crc)
    end
end

local function versions(buffer, tree)
    tree:add(f.version, buffer(0, 1))
    tree:add(f.kind, buffer(1, 1))
    tree:add(f.to_endpoint, buffer(2, 2))
    tree:add(f.from_endpoint, buffer(4, 2))
    tree:add(f.lowest, buffer(6, 1))
    tree:add(f.highest, buffer(7, 1))
    tree:add(f.refused, buffer(8, 1))
    add_crc(tree, buffer, 12)
end

local function parts(buffer, tree, at, last)
    local names = {}
    while at < last do
        local kind = buffer(at, 1):uint()
        local header = part_headers[kind]
        if not header or at + header > last then
            tree:add_proto_expert_info(malformed)
            break
        end
        local bytes = buffer(at + 2, 2):uint()
        if at + header + bytes > last then
            tree:add_proto_expert_info(malformed)
            break
        end
        local sub = tree:add(f.part, buffer(at, header + bytes))
        sub:append_text(": " .. part_kinds[kind] .. " " .. buffer(at + 4, 4):uint())
        sub:add(f.part_kind, buffer(at, 1))
        sub:add(f.part_flags, buffer(at + 1, 1))
        sub:add(f.part_bytes, buffer(at + 2, 2))
        sub:add(f.part_number, buffer(at + 4, 4))
        sub:add(f.part_immediate, buffer(at + 8, 4))
        if header >= 20 then
            sub:add(f.part_total, buffer(at + 12, 4))
            sub:add(f.part_offset, buffer(at + 16, 4))
        end
        if header >= 32 then
            sub:add(f.part_address, buffer(at + 20, 8))
            sub:add(f.part_handle, buffer(at + 28, 4))
        end
        if bytes > 0 then
            sub:add(f.part_payload, buffer(at + header, bytes))
        end
        names[#names + 1] = part_kinds[kind]
        at = at + header + bytes
    end
    return table.concat(names, " ")
end

function vipl.dissector(buffer, info, root)
    if buffer:len() < 16 then
        return 0
    end
    info.cols.protocol = "VIPL"
    local kind = buffer(1, 1):uint()
    local name = kinds[kind] or ("kind " .. kind)
    local tree = root:add(vipl, buffer())
    tree:append_text(", " .. name)
    if kind == 255 then
        versions(buffer, tree)
        info.cols.info = name .. ", version " .. buffer(8, 1):uint() .. " refused"
        return 16
    end
    tree:add(f.version, buffer(0, 1))
    tree:add(f.kind, buffer(1, 1))
    tree:add(f.to_endpoint, buffer(2, 2))
    tree:add(f.from_endpoint, buffer(4, 2))
    if buffer(0, 1):uint() ~= 1 then
        info.cols.info = "version " .. buffer(0, 1):uint()
        return 6
    end
    local length = buffer(6, 2):uint()
    tree:add(f.length, buffer(6, 2))
    if length < 36 or length > buffer:len() then
        tree:add_proto_expert_info(malformed)
        return buffer:len()
    end
    local sequence, acknowledged = buffer(20, 4):uint(), buffer(24, 4):uint()
    tree:add(f.to_vi, buffer(8, 4))
    tree:add(f.check, buffer(12, 8))
    tree:add(f.sequence, buffer(20, 4))
    tree:add(f.acknowledged, buffer(24, 4))
    tree:add(f.window, buffer(28, 2))
    local flags = tree:add(f.flags, buffer(30, 1))
    flags:add(f.ask, buffer(30, 1), buffer(30, 1):uint() % 2 == 1)
    local sealed = math.floor(buffer(30, 1):uint() / 2) % 2 == 1
    flags:add(f.sealed, buffer(30, 1), sealed)
    tree:add(f.marks, buffer(31, 1))
    local body, last, text = 32, length - 4, ""
    if sealed then
        if last - body < 24 then
            tree:add_proto_expert_info(malformed)
            return buffer:len()
        end
        last = last - 24
    end
    if kind == 1 then
        text = " " .. parts(buffer, tree, body, last)
    elseif kind == 2 and last > body then
        tree:add(f.map, buffer(body, last - body))
    elseif kind == 4 and last - body == 12 then
        local reason = buffer(body, 2):uint()
        tree:add(f.close_reason, buffer(body, 2))
        tree:add(f.close_vi, buffer(body + 4, 4))
        tree:add(f.close_operations, buffer(body + 8, 4))
        text = " " .. (reasons[reason] or reason)
    elseif kind == 6 then
        text = " " .. length
    elseif kind == 7 and last - body == 2 then
        tree:add(f.tried, buffer(body, 2))
        text = " " .. buffer(body, 2):uint()
    elseif kind == 8 and last - body > 8 then
        tree:add(f.slice_offset, buffer(body, 2))
        tree:add(f.slice_total, buffer(body + 2, 2))
        tree:add(f.slice_payload, buffer(body + 8, last - body - 8))
        text = " " .. buffer(body, 2):uint() .. " of " .. buffer(body + 2, 2):uint()
    end
    if sealed then
        tree:add(f.seal_number, buffer(last, 8))
        tree:add(f.seal_hash, buffer(last + 8, 16))
    end
    add_crc(tree, buffer, length - 4)
    info.cols.info = name .. text .. ", seq " .. sequence .. ", ack " .. acknowledged
    return length
end

DissectorTable.get("ethertype"):add(0x88b5, vipl)

-- Over UDP the ports are any: a frame is known by its length and its CRC.
local function over_udp(buffer, info, root)
    local length = buffer:len()
    if length < 16 or buffer(0, 1):uint() ~= 1 or not kinds[buffer(1, 1):uint()] then
        return false
    end
    local last = buffer(1, 1):uint() == 255 and 12 or length - 4
    local whole = last == 12 and length == 16 or length >= 36 and buffer(6, 2):uint() == length
    if not whole or crc32c(buffer(0, last)) ~= buffer(last, 4):uint() then
        return false
    end
    vipl.dissector(buffer, info, root)
    return true
end

vipl:register_heuristic("udp", over_udp)

local agents = Proto("vipl_agents", "Virtual Interface Architecture, agents over UDP")
local envelopes = { [1] = "FRAME", [2] = "COOKIE" }
local frames = {
    [1] = "REQUEST", [2] = "PEER", [3] = "ANSWER", [4] = "ACK", [5] = "DISCONNECT", [6] = "GONE", [7] = "WHO",
    [8] = "HERE", [255] = "VERSIONS",
}
local e = {
    version = ProtoField.uint8("vipl_agents.version", "Version"),
    kind = ProtoField.uint8("vipl_agents.kind", "Kind", base.DEC, envelopes),
    sealed = ProtoField.bool("vipl_agents.sealed", "Sealed"),
    number = ProtoField.uint64("vipl_agents.number", "Number"),
    cookie = ProtoField.uint64("vipl_agents.cookie", "Cookie", base.HEX),
    offer = ProtoField.uint64("vipl_agents.offer", "Cookie for the receiver", base.HEX),
    frame = ProtoField.uint8("vipl_agents.frame", "Frame", base.DEC, frames),
    exchange = ProtoField.uint64("vipl_agents.exchange", "Exchange", base.HEX),
    seal = ProtoField.bytes("vipl_agents.seal", "Seal"),
}
agents.fields = e

function agents.dissector(buffer, info, root)
    if buffer:len() < 28 or buffer(0, 1):uint() ~= 1 then
        return 0
    end
    info.cols.protocol = "VIPL agents"
    local tree = root:add(agents, buffer())
    local kind, sealed = buffer(1, 1):uint(), buffer(2, 1):uint() % 2 == 1
    tree:add(e.version, buffer(0, 1))
    tree:add(e.kind, buffer(1, 1))
    tree:add(e.sealed, buffer(2, 1), sealed)
    tree:add(e.number, buffer(4, 8))
    tree:add(e.cookie, buffer(12, 8))
    tree:add(e.offer, buffer(20, 8))
    local last = buffer:len() - (sealed and 32 or 0)
    local text = envelopes[kind] or ("kind " .. kind)
    if last >= 28 + 12 then
        local frame = buffer(29, 1):uint()
        tree:add(e.frame, buffer(29, 1))
        tree:add(e.exchange, buffer(32, 8))
        text = frames[frame] or ("frame " .. frame)
    end
    if sealed and last >= 28 then
        tree:add(e.seal, buffer(last, 32))
    end
    info.cols.info = text
    return buffer:len()
end

DissectorTable.get("udp.port"):add(34998, agents)
