# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/core/usubscription/v3/usubscription.proto
from ustreamer.uprotocol.pb import google_any as _google_any
from ustreamer.uprotocol.pb import google_timestamp as _google_timestamp
from ustreamer.uprotocol.pb import ucode as _ucode
from ustreamer.uprotocol.pb import uri as _uri
from ustreamer.uprotocol.pb import ustatus as _ustatus
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n3uprotocol/core/usubscription/v3/usubscription.proto\x12\x1fuprot'
    b'ocol.core.usubscription.v3\x1a\x19google/protobuf/any.proto\x1a\x1fgoogl'
    b'e/protobuf/timestamp.proto\x1a\x18uprotocol/v1/ucode.proto\x1a\x16uproto'
    b'col/v1/uri.proto\x1a\x1auprotocol/v1/ustatus.proto"\xbd\x01\n\x13SubscribeAt'
    b'tributes\x122\n\x06expire\x18\x01 \x01(\x0b2\x1a.google.protobuf.TimestampR\x06expire'
    b'\x12.\n\x07details\x18\x02 \x03(\x0b2\x14.google.protobuf.AnyR\x07details\x12-\n\x10sample_p'
    b'eriod_ms\x18\x03 \x01(\rH\x00R\x0esamplePeriodMs\x88\x01\x01B\x13\n\x11_sample_period_ms"j\n\x0e'
    b'SubscriberInfo\x12$\n\x03uri\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x03uri\x122\n\x07deta'
    b'ils\x18\x02 \x03(\x0b2\x14.google.protobuf.AnyB\x02\x18\x01R\x07details"\x87\x02\n\x12Subscriptio'
    b'nStatus\x12O\n\x05state\x18\x01 \x01(\x0e29.uprotocol.core.usubscription.v3.Sub'
    b'scriptionStatus.StateR\x05state\x12+\n\x04code\x18\x02 \x01(\x0e2\x13.uprotocol.v1.UC'
    b'odeB\x02\x18\x01R\x04code\x12\x18\n\x07message\x18\x03 \x01(\tR\x07message"Y\n\x05State\x12\x10\n\x0cUNSUBSCR'
    b'IBED\x10\x00\x12\x15\n\x11SUBSCRIBE_PENDING\x10\x01\x12\x0e\n\nSUBSCRIBED\x10\x02\x12\x17\n\x13UNSUBSCRIBE'
    b'_PENDING\x10\x03"\xf4\x01\n\x13EventDeliveryConfig\x12\x0e\n\x02id\x18\x01 \x01(\tR\x02id\x12\x12\n\x04type\x18\x02'
    b' \x01(\tR\x04type\x12d\n\nattributes\x18\x03 \x03(\x0b2D.uprotocol.core.usubscriptio'
    b'n.v3.EventDeliveryConfig.AttributesEntryR\nattributes\x1aS\n\x0fAttr'
    b'ibutesEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12*\n\x05value\x18\x02 \x01(\x0b2\x14.google.protob'
    b'uf.AnyR\x05value:\x028\x01"\xea\x01\n\x13SubscriptionRequest\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.u'
    b'protocol.v1.UUriR\x05topic\x12S\n\nsubscriber\x18\x02 \x01(\x0b2/.uprotocol.core'
    b'.usubscription.v3.SubscriberInfoB\x02\x18\x01R\nsubscriber\x12T\n\nattribut'
    b'es\x18\x03 \x01(\x0b24.uprotocol.core.usubscription.v3.SubscribeAttribut'
    b'esR\nattributes"\xdb\x01\n\x14SubscriptionResponse\x12K\n\x06status\x18\x01 \x01(\x0b23.up'
    b'rotocol.core.usubscription.v3.SubscriptionStatusR\x06status\x12L\n\x06'
    b'config\x18\x02 \x01(\x0b24.uprotocol.core.usubscription.v3.EventDelivery'
    b'ConfigR\x06config\x12(\n\x05topic\x18\x03 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic"\x93\x01\n'
    b'\x12UnsubscribeRequest\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topi'
    b'c\x12S\n\nsubscriber\x18\x02 \x01(\x0b2/.uprotocol.core.usubscription.v3.Subs'
    b'criberInfoB\x02\x18\x01R\nsubscriber"\x15\n\x13UnsubscribeResponse"\xd1\x01\n\x19FetchS'
    b'ubscriptionsRequest\x12*\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriH\x00R\x05to'
    b'pic\x12Q\n\nsubscriber\x18\x02 \x01(\x0b2/.uprotocol.core.usubscription.v3.Su'
    b'bscriberInfoH\x00R\nsubscriber\x12\x1f\n\x06offset\x18\x03 \x01(\rB\x02\x18\x01H\x01R\x06offset\x88\x01\x01B'
    b'\t\n\x07requestB\t\n\x07_offset"\xec\x01\n\x1aFetchSubscriptionsResponse\x12S\n\rsubs'
    b'criptions\x18\x01 \x03(\x0b2-.uprotocol.core.usubscription.v3.Subscripti'
    b'onR\rsubscriptions\x121\n\x10has_more_records\x18\x02 \x01(\x08B\x02\x18\x01H\x00R\x0ehasMoreRe'
    b'cords\x88\x01\x01\x121\n\x06status\x18\x03 \x01(\x0b2\x15.uprotocol.v1.UStatusB\x02\x18\x01R\x06statusB'
    b'\x13\n\x11_has_more_records"\xfa\x02\n\x0cSubscription\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprot'
    b'ocol.v1.UUriR\x05topic\x12O\n\nsubscriber\x18\x02 \x01(\x0b2/.uprotocol.core.usu'
    b'bscription.v3.SubscriberInfoR\nsubscriber\x12K\n\x06status\x18\x03 \x01(\x0b23.u'
    b'protocol.core.usubscription.v3.SubscriptionStatusR\x06status\x12T\n'
    b'\nattributes\x18\x04 \x01(\x0b24.uprotocol.core.usubscription.v3.Subscrib'
    b'eAttributesR\nattributes\x12L\n\x06config\x18\x05 \x01(\x0b24.uprotocol.core.usu'
    b'bscription.v3.EventDeliveryConfigR\x06config">\n\x12CreateTopicRequ'
    b'est\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic"A\n\x15DeprecateTo'
    b'picRequest\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic"\x95\x01\n\x14Not'
    b'ificationsRequest\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic\x12'
    b'S\n\nsubscriber\x18\x02 \x01(\x0b2/.uprotocol.core.usubscription.v3.Subscr'
    b'iberInfoB\x02\x18\x01R\nsubscriber"\x17\n\x15NotificationsResponse"o\n\x17FetchSu'
    b'bscribersRequest\x12(\n\x05topic\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic\x12\x1f'
    b'\n\x06offset\x18\x02 \x01(\rB\x02\x18\x01H\x00R\x06offset\x88\x01\x01B\t\n\x07_offset"\xe8\x01\n\x18FetchSubscrib'
    b'ersResponse\x12Q\n\x0bsubscribers\x18\x01 \x03(\x0b2/.uprotocol.core.usubscript'
    b'ion.v3.SubscriberInfoR\x0bsubscribers\x121\n\x10has_more_records\x18\x02 \x01(\x08'
    b'B\x02\x18\x01H\x00R\x0ehasMoreRecords\x88\x01\x01\x121\n\x06status\x18\x03 \x01(\x0b2\x15.uprotocol.v1.USt'
    b'atusB\x02\x18\x01R\x06statusB\x13\n\x11_has_more_records"\xc6\x02\n\x06Update\x12(\n\x05topic\x18\x01 '
    b'\x01(\x0b2\x12.uprotocol.v1.UUriR\x05topic\x12O\n\nsubscriber\x18\x02 \x01(\x0b2/.uprotoc'
    b'ol.core.usubscription.v3.SubscriberInfoR\nsubscriber\x12K\n\x06statu'
    b's\x18\x03 \x01(\x0b23.uprotocol.core.usubscription.v3.SubscriptionStatus'
    b'R\x06status\x12T\n\nattributes\x18\x04 \x01(\x0b24.uprotocol.core.usubscription.'
    b'v3.SubscribeAttributesR\nattributes"\x1e\n\tResources\x12\x11\n\rsubscript'
    b'ions\x10\x00"%\n\x0bPassiveMode\x12\x16\n\x06enable\x18\x01 \x01(\x08R\x06enable"\xf9\x02\n\x0cResetReque'
    b'st\x12Q\n\x06reason\x18\x01 \x01(\x0b24.uprotocol.core.usubscription.v3.ResetRe'
    b'quest.ReasonH\x00R\x06reason\x88\x01\x01\x12;\n\x06before\x18\x02 \x01(\x0b2\x1a.google.protobuf.'
    b'TimestampB\x02\x18\x01H\x01R\x06before\x88\x01\x01\x1a\xc2\x01\n\x06Reason\x12M\n\x04code\x18\x01 \x01(\x0e29.uproto'
    b'col.core.usubscription.v3.ResetRequest.Reason.CodeR\x04code\x12\x1d\n\x07'
    b'message\x18\x02 \x01(\tH\x00R\x07message\x88\x01\x01">\n\x04Code\x12\x0f\n\x0bUNSPECIFIED\x10\x00\x12\x11\n\rFACT'
    b'ORY_RESET\x10\x01\x12\x12\n\x0eCORRUPTED_DATA\x10\x02B\n\n\x08_messageB\t\n\x07_reasonB\t\n\x07_b'
    b'efore"\x0f\n\rResetResponse2\xdb\x08\n\ruSubscription\x12x\n\tSubscribe\x124.upro'
    b'tocol.core.usubscription.v3.SubscriptionRequest\x1a5.uprotocol.'
    b'core.usubscription.v3.SubscriptionResponse\x12x\n\x0bUnsubscribe\x123.'
    b'uprotocol.core.usubscription.v3.UnsubscribeRequest\x1a4.uprotoc'
    b'ol.core.usubscription.v3.UnsubscribeResponse\x12\x8d\x01\n\x12FetchSubscr'
    b'iptions\x12:.uprotocol.core.usubscription.v3.FetchSubscriptions'
    b'Request\x1a;.uprotocol.core.usubscription.v3.FetchSubscriptions'
    b'Response\x12Y\n\x0bCreateTopic\x123.uprotocol.core.usubscription.v3.Cr'
    b'eateTopicRequest\x1a\x15.uprotocol.v1.UStatus\x12_\n\x0eDeprecateTopic\x126.'
    b'uprotocol.core.usubscription.v3.DeprecateTopicRequest\x1a\x15.upro'
    b'tocol.v1.UStatus\x12\x89\x01\n\x18RegisterForNotifications\x125.uprotocol.co'
    b're.usubscription.v3.NotificationsRequest\x1a6.uprotocol.core.us'
    b'ubscription.v3.NotificationsResponse\x12\x8b\x01\n\x1aUnregisterForNotifi'
    b'cations\x125.uprotocol.core.usubscription.v3.NotificationsReque'
    b'st\x1a6.uprotocol.core.usubscription.v3.NotificationsResponse\x12\x87'
    b'\x01\n\x10FetchSubscribers\x128.uprotocol.core.usubscription.v3.FetchS'
    b'ubscribersRequest\x1a9.uprotocol.core.usubscription.v3.FetchSub'
    b'scribersResponse\x12f\n\x05Reset\x12-.uprotocol.core.usubscription.v3.'
    b'ResetRequest\x1a..uprotocol.core.usubscription.v3.ResetResponse'
    b'b\x06proto3'
)

SubscribeAttributes = _message_class(DESCRIPTOR.message_types_by_name["SubscribeAttributes"], __name__)
SubscriberInfo = _message_class(DESCRIPTOR.message_types_by_name["SubscriberInfo"], __name__)
SubscriptionStatus = _message_class(DESCRIPTOR.message_types_by_name["SubscriptionStatus"], __name__)
EventDeliveryConfig = _message_class(DESCRIPTOR.message_types_by_name["EventDeliveryConfig"], __name__)
SubscriptionRequest = _message_class(DESCRIPTOR.message_types_by_name["SubscriptionRequest"], __name__)
SubscriptionResponse = _message_class(DESCRIPTOR.message_types_by_name["SubscriptionResponse"], __name__)
UnsubscribeRequest = _message_class(DESCRIPTOR.message_types_by_name["UnsubscribeRequest"], __name__)
UnsubscribeResponse = _message_class(DESCRIPTOR.message_types_by_name["UnsubscribeResponse"], __name__)
FetchSubscriptionsRequest = _message_class(DESCRIPTOR.message_types_by_name["FetchSubscriptionsRequest"], __name__)
FetchSubscriptionsResponse = _message_class(DESCRIPTOR.message_types_by_name["FetchSubscriptionsResponse"], __name__)
Subscription = _message_class(DESCRIPTOR.message_types_by_name["Subscription"], __name__)
CreateTopicRequest = _message_class(DESCRIPTOR.message_types_by_name["CreateTopicRequest"], __name__)
DeprecateTopicRequest = _message_class(DESCRIPTOR.message_types_by_name["DeprecateTopicRequest"], __name__)
NotificationsRequest = _message_class(DESCRIPTOR.message_types_by_name["NotificationsRequest"], __name__)
NotificationsResponse = _message_class(DESCRIPTOR.message_types_by_name["NotificationsResponse"], __name__)
FetchSubscribersRequest = _message_class(DESCRIPTOR.message_types_by_name["FetchSubscribersRequest"], __name__)
FetchSubscribersResponse = _message_class(DESCRIPTOR.message_types_by_name["FetchSubscribersResponse"], __name__)
Update = _message_class(DESCRIPTOR.message_types_by_name["Update"], __name__)
PassiveMode = _message_class(DESCRIPTOR.message_types_by_name["PassiveMode"], __name__)
ResetRequest = _message_class(DESCRIPTOR.message_types_by_name["ResetRequest"], __name__)
ResetResponse = _message_class(DESCRIPTOR.message_types_by_name["ResetResponse"], __name__)
